// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
)

// Proof is the result of Verify.
type Proof struct {
	// Healed is whether nothing is left of the faults that the actions are for.
	Healed bool `json:"healed"`
	// Evidence has, for each action, what is at the place now.
	Evidence []string `json:"evidence"`
	// NotHealed are the places that are not healed, with the reason.
	NotHealed []string `json:"left,omitempty"`
}

// Verify inspects once the places of actions that were applied: the old mount is gone, and the one there now answers, is the
// source, and can be bound. An aborted connection must not hang any more.
func (i *Inspector) Verify(ctx context.Context, actions []fault.Action) (Proof, error) {
	proof, uids := Proof{}, []string(nil)
	for _, action := range actions {
		if err := checkComplete(action); err != nil {
			return Proof{}, err
		}
		if !slices.Contains(uids, action.Pod.UID) {
			uids = append(uids, action.Pod.UID)
		}
	}
	if len(actions) == 0 {
		return Proof{Healed: true}, nil
	}
	n, err := i.inspectPods(ctx, uids)
	if err != nil {
		return Proof{}, err
	}
	for _, action := range actions {
		check := n.placeIsReplaced
		switch action.Kind {
		case fault.Abort:
			check = n.answersAgain
		case fault.Unmount:
			check = n.isRemoved
		}
		if done, how := check(*action.Mount); done {
			proof.Evidence = append(proof.Evidence, how)
		} else {
			proof.NotHealed = append(proof.NotHealed, how)
		}
	}
	proof.Healed = len(proof.NotHealed) == 0
	return proof, nil
}

// answersAgain reports whether a mount that did not answer does so now, if only with an error, or has gone itself.
func (n *inspection) answersAgain(want fault.Mount) (ok bool, how string) {
	for _, v := range n.volumes {
		if faults.MountOf(v.Evidence.Mount).Same(want) {
			return !v.Evidence.Answer.State.Unanswered(), fmt.Sprintf("the mount at %q: %s", v.Evidence.Point, v.Evidence.Answer.State)
		}
	}
	return true, fmt.Sprintf("the mount at %q is gone", want.Point)
}
