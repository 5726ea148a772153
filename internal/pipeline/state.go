// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/repair"
)

// state is the knowledge about one node, from the journal and from all that has run since.
type state struct {
	start    time.Time
	attempts int // begun
	failures int // ended, to be tried again
	plan     *repair.Plan
	boot     string // under which the plan was made
	actions  []v1.Action
	// begun are the actions of which a try has begun and not ended, changed those of which an earlier try may have changed something.
	begun, changed map[int]bool
	done           *record // how it ended
	// confirmed is whether BeforeRepair has confirmed the plan: nothing of it is done before.
	confirmed bool
	reported  bool // whether the report of this process has it
}

// apply takes in one record; false if it makes no sense.
func (s *state) apply(r record) bool {
	if s.done != nil || r.Kind != kindAttempt && s.attempts == 0 {
		return false
	}
	switch r.Kind {
	case kindAttempt:
		if s.attempts++; s.attempts == 1 {
			s.start = r.Time
		}
	case kindPlan:
		if s.plan != nil && s.boot == r.Boot || r.Plan == nil {
			return false
		}
		s.plan, s.boot, s.actions, s.confirmed = r.Plan, r.Boot, nil, false
		for _, a := range r.Plan.Actions() {
			s.actions = append(s.actions, NewAction(a))
		}
		s.begun, s.changed = map[int]bool{}, map[int]bool{}
	case kindApply, kindApplied:
		if s.plan == nil || r.Action.Index < 0 || r.Action.Index >= len(s.actions) {
			return false
		}
		s.applyAction(r)
	case kindVerify:
		return s.plan != nil
	case kindRetry:
		s.failures++
	case kindDone:
		s.done = &r
	default:
		return false
	}
	return true
}

// applyAction takes in the beginning or the end of an action.
func (s *state) applyAction(r record) {
	s.confirmed = true
	at := r.Action.Index
	if r.Kind == kindApply {
		s.changed[at] = s.changed[at] || s.begun[at]
		s.begun[at] = true
		return
	}
	a := &s.actions[at]
	a.Phase, a.Message = v1.ActionDone, r.Message
	a.Calls = append(a.Calls, r.Action.Calls[:min(len(r.Action.Calls), calls.MaxCalls-len(a.Calls))]...)
	s.begun[at] = false
	if r.Reason != "" {
		a.Phase = v1.ActionFailed
		s.changed[at] = s.changed[at] || !changedNothing(r.Reason)
		return
	}
	a.Already = r.Action.Already && !s.changed[at] // an earlier try may have done it
}

// outlived reports whether an action is left to do about a mount or a device of an earlier boot. The numbers in it are those of others
// by now.
func (s *state) outlived(boot string) bool {
	if s.plan == nil || s.boot == boot {
		return false
	}
	for i, a := range s.plan.Actions() {
		if endsWithBoot(a) && s.actions[i].Phase != v1.ActionDone {
			return true
		}
	}
	return false
}
