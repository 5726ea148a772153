// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// Recoverer is the recoverer autoRecover. It plans; each family does and proves its own parts.
type Recoverer struct {
	Families []Family
}

// Name is autoRecover.
func (*Recoverer) Name() string { return "autoRecover" }

// Parameters are those of all diagnosers and recoverers.
func (h *Recoverer) Parameters() []string {
	var parts []any
	for _, f := range h.Families {
		parts = append(parts, f.Diagnoser)
		for _, remedy := range f.Remedies {
			parts = append(parts, remedy.Family)
		}
	}
	return mergeParameters(parts...)
}

// maxParts bounds how many plans one plan has: one for each family and pod.
const maxParts = 50

// refusal is about a fault that stays.
type refusal struct {
	Family    string       `json:"family"`
	Namespace string       `json:"namespace,omitempty"`
	Pod       string       `json:"pod,omitempty"`
	Codes     []fault.Code `json:"codes,omitempty"`
	Reason    string       `json:"reason"`
	Next      string       `json:"next"`
}

// planDraft is a plan that grows by one target after another.
type planDraft struct {
	plan    repair.Plan
	refused []refusal
	// messages say of each family whose faults have gone since they were found how it looks now.
	messages []string
	errs     []error
}

// Plan has each family plan that has found a fault. A plan without an action repairs nothing, and says why.
func (h *Recoverer) Plan(ctx context.Context, request processor.Request) (repair.Plan, error) {
	found, err := readChecks(request)
	if err != nil {
		return repair.Plan{}, err
	}
	var d planDraft
	for _, check := range found {
		i := slices.IndexFunc(h.Families, func(f Family) bool { return f.Name == check.Family })
		switch {
		case check.Error != "":
			d.addRefusal(check, "it could not be looked for: "+check.Error)
		case len(check.Codes) > 0 && check.Family == leavingCheck:
			d.addRefusal(check, "no change of a mount repairs it")
		case len(check.Codes) == 0 || i < 0:
		case h.Families[i].Scope <= Volumes && request.Pod.Name == "" && check.Pod == "":
			d.addRefusal(check, "no pod is known that it belongs to")
		case len(d.plan.Parts) == maxParts:
			d.addRefusal(check, fmt.Sprintf("it is left for another run: no more than %d repairs are planned at once", maxParts))
		default:
			d.addTarget(ctx, familyTarget{&h.Families[i], requestFor(request, check.Namespace, check.Pod)}, check, request.Pod.Name != "")
		}
		if len(check.Unjudged) > 0 {
			d.addRefusal(familyCheck{Family: check.Family, Namespace: check.Namespace, Pod: check.Pod},
				"it could not be judged: "+processor.JoinReasons(check.Unjudged, maxSentences))
		}
		if ctx.Err() != nil {
			return repair.Plan{}, context.Cause(ctx)
		}
	}
	if len(d.plan.Parts) == 0 && len(d.errs) > 0 {
		return repair.Plan{}, repair.JoinErrors(d.errs)
	}
	if len(d.refused) > 0 {
		d.plan.Values = map[string]string{}
		if err := processor.AddJSON(d.plan.Values, map[string]any{keyRefused: d.refused}); err != nil {
			return repair.Plan{}, err
		}
	}
	for _, r := range d.refused {
		d.messages = append(d.messages, fmt.Sprintf("%s. Next: %s", r.Reason, r.Next))
	}
	d.plan.Message = processor.JoinReasons(d.messages, maxSentences)
	return d.plan, nil
}

// addTarget takes up the plan of the first remedy that has one, or why none has.
func (d *planDraft) addTarget(ctx context.Context, target familyTarget, check familyCheck, named bool) {
	var reasons []string
	for _, remedy := range target.Remedies {
		if remedy.NamedPodOnly && !named || !slices.ContainsFunc(check.Codes,
			func(code fault.Code) bool { return slices.Contains(remedy.Codes, code) }) {
			continue
		}
		part, err := remedy.Plan(ctx, target.request)
		switch {
		case err != nil:
			d.errs = append(d.errs, fmt.Errorf("%s: %w", target.Name, err))
			reasons = append(reasons, err.Error())
		case len(part.Actions) > 0:
			part.Family, part.Pod, part.Gone = remedy.Name(), target.request.Pod, nil
			d.plan.Parts = append(d.plan.Parts, part)
			return
		case allGone(part.Gone, check.Codes):
			d.plan.Gone = append(d.plan.Gone, part.Gone...)
			d.messages = append(d.messages, printable.Clip(part.NotApplicable, maxMessage))
			return
		default:
			reasons = append(reasons, cmp.Or(part.NotApplicable, "nothing is known that could be done"))
		}
	}
	if len(reasons) == 0 {
		reasons = []string{cmp.Or(check.Message, "no change of a mount repairs it")}
	}
	d.addRefusal(check, processor.JoinReasons(reasons, maxSentences))
}

// allGone reports whether the faults of every code have gone since they were found.
func allGone(gone []fault.Absence, codes []fault.Code) bool {
	return !slices.ContainsFunc(codes, func(code fault.Code) bool {
		return !slices.ContainsFunc(gone, func(a fault.Absence) bool { return a.Code == code })
	})
}

func (d *planDraft) addRefusal(c familyCheck, reason string) {
	next := "create another Diagnosis once that is solved"
	if len(c.Codes) > 0 {
		next = cmp.Or(c.Next, fault.Known().Entry(c.Codes[0]).Next)
	}
	d.refused = append(d.refused, refusal{
		Family: c.Family, Namespace: c.Namespace, Pod: c.Pod, Codes: c.Codes, Reason: printable.Clip(reason, maxMessage), Next: next,
	})
}
