// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/linux/probe"
)

// Proof is the result of Verify.
type Proof struct {
	// Healed is whether nothing is left of the faults that the actions are for.
	Healed bool `json:"healed"`
	// Evidence has, for each action, what is at the place now.
	Evidence []string `json:"evidence"`
	// Left are the places that are not healed, with the reason.
	Left []string `json:"left,omitempty"`
}

// Verify inspects the places of actions that were applied: the old mount is gone, and the one there now answers, is the
// source, and can be bound. An aborted connection must not hang any more.
func (i *Inspector) Verify(ctx context.Context, actions []fault.Action) (Proof, error) {
	p := Proof{}
	inspections := map[string]*inspection{}
	for _, a := range actions {
		if err := complete(a); err != nil {
			return Proof{}, err
		}
		n := inspections[a.Pod.UID]
		if n == nil {
			var err error
			if n, err = i.inspectPod(ctx, a.Pod.UID); err != nil {
				return Proof{}, err
			}
			inspections[a.Pod.UID] = n
		}
		check := n.replaced
		if a.Kind == fault.Abort {
			check = n.answers
		}
		if done, how := check(*a.Mount); done {
			p.Evidence = append(p.Evidence, how)
		} else {
			p.Left = append(p.Left, how)
		}
	}
	p.Healed = len(p.Left) == 0
	return p, nil
}

// answers reports whether a mount that did not answer does so now, if only with an error, or has gone itself.
func (n *inspection) answers(want fault.Mount) (ok bool, how string) {
	for _, v := range n.volumes {
		if faults.MountOf(v.Mount).Same(want) {
			return v.Answer.State != probe.Hung && v.Answer.State != probe.Unasked, fmt.Sprintf("the mount at %q: %s", v.Point, v.Answer.State)
		}
	}
	return true, fmt.Sprintf("there is no such mount at %q any more", want.Point)
}
