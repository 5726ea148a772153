// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/probe"
)

// Proof is what Verify has found.
type Proof struct {
	// Healed is whether nothing is left of the faults that the actions are for.
	Healed bool `json:"healed"`
	// Evidence says, for each action, what is at the place now.
	Evidence []string `json:"evidence"`
	// Left are the places that are not healed, with the reason.
	Left []string `json:"left,omitempty"`
}

// Verify looks afresh at the places of actions that were applied: the old mount is gone, and what is there now answers,
// is the source, and can be bound. Of an aborted connection, that it no longer hangs.
func (i *Inspector) Verify(ctx context.Context, actions []fault.Action) (Proof, error) {
	p := Proof{}
	looks := map[string]*look{}
	for _, a := range actions {
		if err := complete(a); err != nil {
			return Proof{}, err
		}
		l := looks[a.Pod.UID]
		if l == nil {
			var err error
			if l, err = i.lookAt(ctx, a.Pod.UID); err != nil {
				return Proof{}, err
			}
			looks[a.Pod.UID] = l
		}
		check := l.done
		if a.Kind == fault.Abort {
			check = l.answers
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

// answers tells whether a mount that did not answer does, be it that its connection is gone, or has gone itself.
func (l *look) answers(want fault.Mount) (ok bool, how string) {
	for _, v := range l.survey.Volumes {
		if sameMount(faultMount(v.Mount), want) {
			return v.Answer.State != probe.Hung && v.Answer.State != probe.Unasked, fmt.Sprintf("the mount at %q: %s", v.Point, v.Answer.State)
		}
	}
	return true, fmt.Sprintf("there is no such mount at %q any more", want.Point)
}
