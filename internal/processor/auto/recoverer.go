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
	return parameters(parts...)
}

// maxParts bounds how many plans one plan has: one for each family and pod.
const maxParts = 50

// memory is what Verify has to know about the time of the plan.
type memory struct {
	Parts   []part    `json:"parts,omitempty"`
	Refused []refusal `json:"refused,omitempty"`
	// Gone says of each family whose faults have gone since they were found how it looks now.
	Gone []string `json:"gone,omitempty"`
}

// part is the plan of one remedy for one target.
type part struct {
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

// draft is a plan that grows by one target after another.
type draft struct {
	plan processor.Plan
	memory
	errs []error
}

// Plan has each family plan that has found a fault. A plan without an action repairs nothing, and says why.
func (h *Recoverer) Plan(ctx context.Context, r processor.Request) (processor.Plan, error) {
	found, err := checks(r)
	if err != nil {
		return processor.Plan{}, err
	}
	var d draft
	for _, c := range found {
		i := slices.IndexFunc(h.Families, func(f Family) bool { return f.Name == c.Family })
		switch {
		case c.Error != "":
			d.refuse(c, "it could not be looked for: "+c.Error)
		case len(c.Codes) == 0 || i < 0:
		case h.Families[i].Scope <= Volumes && r.Pod.Name == "" && c.Pod == "":
			d.refuse(c, "no pod is known that it belongs to")
		case len(d.Parts) == maxParts:
			d.refuse(c, fmt.Sprintf("it is left for another run: no more than %d repairs are planned at once", maxParts))
		default:
			d.add(ctx, target{&h.Families[i], about(r, c.Namespace, c.Pod)}, c, r.Pod.Name != "")
		}
		if ctx.Err() != nil {
			return processor.Plan{}, context.Cause(ctx)
		}
	}
	if len(d.Parts) == 0 && len(d.errs) > 0 {
		return processor.Plan{}, all(d.errs)
	}
	err = d.plan.SaveState(d.memory)
	return d.plan, err
}

// add takes up the plan of the first remedy that has one, or why none has.
func (d *draft) add(ctx context.Context, t target, c check, named bool) {
	var reasons []string
	for _, remedy := range t.Remedies {
		if remedy.Named && !named || !slices.ContainsFunc(c.Codes, func(code fault.Code) bool { return slices.Contains(remedy.Codes, code) }) {
			continue
		}
		p, err := remedy.Plan(ctx, t.request)
		switch {
		case err != nil:
			d.errs = append(d.errs, fmt.Errorf("%s: %w", t.Name, err))
			reasons = append(reasons, err.Error())
		case len(p.Actions) > 0:
			d.take(t, remedy.Name(), p)
			return
		case goneAll(p.Gone, c.Codes):
			d.plan.Gone = append(d.plan.Gone, p.Gone...)
			d.Gone = append(d.Gone, printable.Clip(p.NotApplicable, maxMessage))
			return
		default:
			reasons = append(reasons, cmp.Or(p.NotApplicable, "nothing is known that could be done"))
		}
	}
	if len(reasons) == 0 {
		reasons = []string{cmp.Or(c.Message, "no change of a mount repairs it")}
	}
	d.refuse(c, processor.JoinReasons(reasons, maxSaid))
}

// goneAll reports whether the faults of every code have gone since they were found.
func goneAll(gone []fault.Absence, codes []fault.Code) bool {
	return !slices.ContainsFunc(codes, func(code fault.Code) bool {
		return !slices.ContainsFunc(gone, func(a fault.Absence) bool { return a.Code == code })
	})
}

// take adds a plan as one part. Its actions name the pod, by which Apply knows it.
func (d *draft) take(t target, remedy string, p processor.Plan) {
	pod := t.request.Pod
	for _, a := range p.Actions {
		if t.Scope <= Volumes {
			named := fault.Pod{Namespace: pod.Namespace, Name: pod.Name}
			if a.Pod != nil {
				named.UID = a.Pod.UID
			}
			a.Pod = &named
		}
		d.plan.Actions = append(d.plan.Actions, a)
	}
	d.plan.Findings = append(d.plan.Findings, p.Findings...)
	d.plan.Parts = append(d.plan.Parts, len(p.Actions))
	d.Parts = append(d.Parts, part{
		Remedy: remedy, Namespace: pod.Namespace, Pod: pod.Name, Actions: len(p.Actions), Findings: len(p.Findings), Notes: p.Notes,
	})
}

func (d *draft) refuse(c check, reason string) {
	next := "create another Diagnosis once that is solved"
	if len(c.Codes) > 0 {
		next = nextSteps[c.Codes[0]]
	}
	d.Refused = append(d.Refused, refusal{
		Family: c.Family, Namespace: c.Namespace, Pod: c.Pod, Codes: c.Codes, Reason: printable.Clip(reason, maxMessage), Next: next,
	})
}

// remedy finds who has planned an action, by what it is and by nothing that is said about it.
func (h *Recoverer) remedy(a fault.Action) (Remedy, bool) {
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
func (h *Recoverer) Apply(ctx context.Context, r processor.Request, a fault.Action) (fault.Applied, error) {
	remedy, ok := h.remedy(a)
	if !ok {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: nothing is known that does %q against %q", a.Kind, a.Fault))
	}
	if a.Pod != nil {
		r = about(r, a.Pod.Namespace, a.Pod.Name)
	}
	return remedy.Apply(ctx, r, a)
}
