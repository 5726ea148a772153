// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
)

// Repair is a repair that the sentinel has tried.
type Repair struct {
	// Fault is what was found.
	Fault fault.Finding
	// Action is what was done about it.
	Action fault.Action
	// Ended is when it was over.
	Ended time.Time
	// Calls are the changing calls that were made, with their results.
	Calls []calls.Call
	// Proof says for people how the result was verified.
	Proof string
	// Err is nil if the repair was verified.
	Err error
}

// unmountOf is the repair of a bind by its unmount.
func unmountOf(n *notification, f fault.Finding) Repair {
	r := Repair{
		Fault: f, Ended: n.endedAt, Calls: n.calls, Err: n.err,
		Action: fault.Action{
			Kind: fault.Unmount, Target: f.Mount.Point, For: []fault.Key{f.Key()}, Mount: &f.Mount, Pod: &f.Pod,
			Safety: n.found.Reason, Lossless: true,
		},
	}
	if n.err == nil {
		r.Proof = "the mount table shows that this mount is gone"
	}
	return r
}

// replacementOf is the repair of a volume by an action of its plan.
func replacementOf(f fault.Finding, a fault.Action, applied fault.Applied, made []calls.Call, err error) Repair {
	r := Repair{Fault: f, Action: a, Ended: time.Now(), Calls: made, Err: err}
	if err == nil {
		r.Proof = fmt.Sprintf("%s; the mount table shows it at %s", applied.Message, f.Mount.Point)
	}
	return r
}
