// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// Bounds of a plan in the status.
const (
	maxLosses    = 10
	maxLossBytes = 512
)

// NewPlan returns the plan of an operation as statuses have it; nil if it has no actions.
func NewPlan(operation string, actions []fault.Action) *v1.Plan {
	if len(actions) == 0 {
		return nil
	}
	p := &v1.Plan{Operation: operation, Hash: planHash(actions), Actions: int32(len(actions)), Lossless: true}
	for _, a := range actions {
		if a.Lossless {
			continue
		}
		p.Lossless = false
		if loss := printable.Clip(a.Loss, maxLossBytes); loss != "" && !slices.Contains(p.Loss, loss) && len(p.Loss) < maxLosses {
			p.Loss = append(p.Loss, loss)
		}
	}
	return p
}

// planFormat is part of what is hashed: a release that hashes something else has another.
const planFormat = "kubediag plan 1\n"

// change is what an action changes, without the sentences about it. Two plans with equal changes do the same.
type change struct {
	Kind      fault.ActionKind
	Fault     fault.Code
	Mount     *fault.Mount  `json:",omitempty"`
	Device    *fault.Device `json:",omitempty"`
	File      *fault.File   `json:",omitempty"`
	PodUID    string        `json:",omitempty"`
	Container string        `json:",omitempty"`
}

// planHash identifies what a plan changes. The kubelet makes another record of a container each time that its start fails,
// so such records count by their container, once.
func planHash(actions []fault.Action) string {
	var all []change
	for _, a := range actions {
		c := change{Kind: a.Kind, Fault: a.Fault, Mount: a.Mount, Device: a.Device, File: a.File, Container: a.Container}
		if a.Pod != nil {
			c.PodUID = a.Pod.UID
		}
		if a.Kind == fault.RemoveContainerRecord && slices.Contains(all, c) { // it has no pointers
			continue
		}
		all = append(all, c)
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(append([]byte(planFormat), text...))
	return hex.EncodeToString(sum[:])
}

// onlyPlanned reports whether only what a plan shows may be changed: nothing, or what was shown before it was allowed.
func onlyPlanned(s *v1.DiagnosisSpec) bool {
	return s.Mode == v1.ModePlan || s.Mode == v1.ModeApprove || s.PlanHash != ""
}
