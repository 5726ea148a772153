// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"encoding/json"
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
)

// Plan has all actions before any of them is done. It survives a crash as JSON.
type Plan struct {
	// Parts do not depend on each other.
	Parts []Part `json:"parts,omitempty"`
	// Gone are the named faults that no longer exist. They need no repair.
	Gone []fault.Absence `json:"gone,omitempty"`
	// Values are results that are known before anything is done, and Message is their sentence for people.
	Values  map[string]string `json:"values,omitempty"`
	Message string            `json:"message,omitempty"`
	// NotApplicable, if it is not empty, says why there is nothing to do, and Left are faults that stay. There are no parts then.
	NotApplicable string          `json:"notApplicable,omitempty"`
	Left          []fault.Finding `json:"left,omitempty"`
}

// Part has the actions of one family about one subject. If one of its actions fails, only the rest of the part is left undone.
type Part struct {
	// Family is the name of the family, which plans without it.
	Family string `json:"family,omitempty"`
	// Pod is the pod of the part, if the Diagnosis names none.
	Pod     processor.Pod  `json:"pod,omitzero"`
	Actions []fault.Action `json:"actions"`
	// Findings are the faults that the part repairs.
	Findings []fault.Finding `json:"findings,omitempty"`
	// Gone is that of a plan with this part alone.
	Gone []fault.Absence `json:"gone,omitempty"`
	// Notes are facts that Verify needs, by key.
	Notes map[string]string `json:"notes,omitempty"`
	// NotApplicable, if it is not empty, says why there is nothing to do. Actions are then empty.
	NotApplicable string `json:"notApplicable,omitempty"`
	// Applied says how each of Actions went. Only the part that Verify gets has it. Already is not set there if an earlier
	// try, which was cut short or failed, may have made the change.
	Applied []fault.Applied `json:"-"`
}

// PlanOf is the plan with the part of one family alone.
func PlanOf(family string, p Part) Plan {
	plan := Plan{Gone: p.Gone, NotApplicable: p.NotApplicable}
	if p.Gone = nil; p.NotApplicable != "" {
		plan.Left = p.Findings
		return plan
	}
	p.Family = family
	plan.Parts = []Part{p}
	return plan
}

// Actions are those of all parts, in order.
func (p *Plan) Actions() (all []fault.Action) {
	for _, part := range p.Parts {
		all = append(all, part.Actions...)
	}
	return all
}

// partsAt are the parts of the plan when its actions are that far.
func (p *Plan) partsAt(progress []fault.Applied) []Part {
	parts := slices.Clone(p.Parts)
	for i := range parts {
		n := len(parts[i].Actions)
		parts[i].Applied, progress = progress[:n], progress[n:]
	}
	return parts
}

// Findings are those of all parts, in order.
func (p *Plan) Findings() (all []fault.Finding) {
	for _, part := range p.Parts {
		all = append(all, part.Findings...)
	}
	return all
}

// Outcome says how the action with that index went. The zero value is that of an action which has changed something, or may have.
func (p *Part) Outcome(i int) fault.Applied {
	if i < len(p.Applied) {
		return p.Applied[i]
	}
	return fault.Applied{}
}

// For is the request as it concerns the part.
func (p *Part) For(r processor.Request) processor.Request {
	if r.Pod.Name == "" {
		r.Pod = p.Pod
	}
	return r
}

// StateNote is the key of the note that SaveState writes.
const StateNote = "memory"

// SaveState writes down the facts of the time of the plan that Verify needs, as JSON.
func (p *Part) SaveState(state any) error {
	text, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("encode notes of plan: %w", err)
	}
	p.Notes = map[string]string{StateNote: string(text)}
	return nil
}

// LoadState reads the state that SaveState wrote. A failure is not worth another try.
func (p *Part) LoadState(state any) error {
	if err := json.Unmarshal([]byte(p.Notes[StateNote]), state); err != nil {
		return processor.Stalled(fmt.Errorf("decode notes of plan: %w", err))
	}
	return nil
}
