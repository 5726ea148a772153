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
)

// Recoverer is the recoverer autoRecover.
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
			parts = append(parts, remedy.Recoverer)
		}
	}
	return mergeParameters(parts...)
}

// maxParts bounds how many plans one plan has: one for each family and pod.
const maxParts = 50

// planState is what Verify has to know about the time of the plan.
type planState struct {
	Parts   []planPart `json:"parts,omitempty"`
	Refused []refusal  `json:"refused,omitempty"`
	// Gone says of each family whose faults have gone since they were found how it looks now.
	Gone []string `json:"gone,omitempty"`
}

// planPart is the plan of one remedy for one target.
type planPart struct {
	Remedy    string `json:"remedy"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	// Actions and Findings are how many of the plan are its own.
	Actions  int               `json:"actions"`
	Findings int               `json:"findings"`
	Notes    map[string]string `json:"notes,omitempty"`
}

// refusal is what is left broken.
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
	plan processor.Plan
	planState
	errs []error
}

// Plan has each family plan that has found a fault. A plan without an action repairs nothing, and says why.
func (h *Recoverer) Plan(ctx context.Context, request processor.Request) (processor.Plan, error) {
	found, err := readChecks(request)
	if err != nil {
		return processor.Plan{}, err
	}
	var d planDraft
	for _, check := range found {
		i := slices.IndexFunc(h.Families, func(f Family) bool { return f.Name == check.Family })
		switch {
		case check.Error != "":
			d.addRefusal(check, "it could not be looked for: "+check.Error)
		case len(check.Codes) == 0 || i < 0:
		case h.Families[i].Scope <= Volumes && request.Pod.Name == "" && check.Pod == "":
			d.addRefusal(check, "no pod is known that it belongs to")
		case len(d.Parts) == maxParts:
			d.addRefusal(check, fmt.Sprintf("it is left for another run: no more than %d repairs are planned at once", maxParts))
		default:
			d.addTarget(ctx, familyTarget{&h.Families[i], requestFor(request, check.Namespace, check.Pod)}, check, request.Pod.Name != "")
		}
		if len(check.Unjudged) > 0 {
			d.addRefusal(familyCheck{Family: check.Family, Namespace: check.Namespace, Pod: check.Pod},
				"it could not be judged: "+processor.JoinReasons(check.Unjudged, maxSentences))
		}
		if ctx.Err() != nil {
			return processor.Plan{}, context.Cause(ctx)
		}
	}
	if len(d.Parts) == 0 && len(d.errs) > 0 {
		return processor.Plan{}, joinErrors(d.errs)
	}
	err = d.plan.SaveState(d.planState)
	return d.plan, err
}

// addTarget takes up the plan of the first remedy that has one, or why none has.
func (d *planDraft) addTarget(ctx context.Context, target familyTarget, check familyCheck, named bool) {
	var reasons []string
	for _, remedy := range target.Remedies {
		if remedy.NamedPodOnly && !named || !slices.ContainsFunc(check.Codes,
			func(code fault.Code) bool { return slices.Contains(remedy.Codes, code) }) {
			continue
		}
		plan, err := remedy.Plan(ctx, target.request)
		switch {
		case err != nil:
			d.errs = append(d.errs, fmt.Errorf("%s: %w", target.Name, err))
			reasons = append(reasons, err.Error())
		case len(plan.Actions) > 0:
			d.addPart(target, remedy.Name(), plan)
			return
		case allGone(plan.Gone, check.Codes):
			d.plan.Gone = append(d.plan.Gone, plan.Gone...)
			d.Gone = append(d.Gone, printable.Clip(plan.NotApplicable, maxMessage))
			return
		default:
			reasons = append(reasons, cmp.Or(plan.NotApplicable, "nothing is known that could be done"))
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

// addPart adds a plan as one part. Its actions name the pod, by which Apply knows it.
func (d *planDraft) addPart(t familyTarget, remedy string, plan processor.Plan) {
	pod := t.request.Pod
	for _, action := range plan.Actions {
		if t.Scope <= Volumes {
			named := fault.Pod{Namespace: pod.Namespace, Name: pod.Name}
			if action.Pod != nil {
				named.UID = action.Pod.UID
			}
			action.Pod = &named
		}
		d.plan.Actions = append(d.plan.Actions, action)
	}
	d.plan.Findings = append(d.plan.Findings, plan.Findings...)
	d.plan.Parts = append(d.plan.Parts, len(plan.Actions))
	d.Parts = append(d.Parts, planPart{
		Remedy: remedy, Namespace: pod.Namespace, Pod: pod.Name, Actions: len(plan.Actions), Findings: len(plan.Findings), Notes: plan.Notes,
	})
}

func (d *planDraft) addRefusal(c familyCheck, reason string) {
	next := "create another Diagnosis once that is solved"
	if len(c.Codes) > 0 {
		next = cmp.Or(c.Next, c.Codes[0].Entry().Next)
	}
	d.Refused = append(d.Refused, refusal{
		Family: c.Family, Namespace: c.Namespace, Pod: c.Pod, Codes: c.Codes, Reason: printable.Clip(reason, maxMessage), Next: next,
	})
}

// remedyOf finds who has planned an action, by what it is and by nothing that is said about it.
func (h *Recoverer) remedyOf(a fault.Action) (Remedy, bool) {
	for _, f := range h.Families {
		for _, r := range f.Remedies {
			if slices.Contains(r.Codes, a.Fault) && (len(r.Kinds) == 0 || slices.Contains(r.Kinds, a.Kind)) {
				return r, true
			}
		}
	}
	return Remedy{}, false
}

// Apply has the recoverer do an action that has planned it.
func (h *Recoverer) Apply(ctx context.Context, request processor.Request, action fault.Action) (fault.Applied, error) {
	remedy, ok := h.remedyOf(action)
	if !ok {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: nothing is known that does %q against %q", action.Kind, action.Fault))
	}
	if action.Pod != nil {
		request = requestFor(request, action.Pod.Namespace, action.Pod.Name)
	}
	return remedy.Apply(ctx, request, action)
}
