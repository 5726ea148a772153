// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"slices"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/processor"
)

// state is what is known about one node: from the journal, and from what has run since.
type state struct {
	start    time.Time
	attempts int // begun
	failures int // ended, to be tried again
	plan     *processor.Plan
	actions  []v1.Action
	tries    []int   // by action: how often it was begun, but for those tries that surely did nothing
	done     *record // how it ended
	// confirmed is whether BeforeRepair has confirmed the plan: nothing of it is done before.
	confirmed bool
	reported  bool // whether the report of this process has it
}

// replay makes the states of records, which a correct run has written in an order that makes sense.
func replay(job job, records []record) (map[int32]*state, error) {
	states := map[int32]*state{}
	for _, r := range records[1:] {
		if r.Kind == kindEnd && r.Seq == len(records) {
			break
		}
		if _, ok := job.Operations[r.Node]; !ok {
			return nil, fmt.Errorf("%w: record %d: there is no node %d", errCorrupt, r.Seq, r.Node)
		}
		if states[r.Node] == nil {
			states[r.Node] = &state{}
		}
		if !states[r.Node].apply(r) {
			return nil, fmt.Errorf("%w: record %d: %q is out of place", errCorrupt, r.Seq, r.Kind)
		}
	}
	return states, nil
}

// apply takes in one record; false if it makes no sense.
func (s *state) apply(r record) bool {
	switch {
	case s.done != nil, r.Kind != kindAttempt && s.attempts == 0:
		return false
	}
	switch r.Kind {
	case kindAttempt:
		if s.attempts++; s.attempts == 1 {
			s.start = r.Time
		}
	case kindPlan:
		if s.plan != nil || r.Plan == nil {
			return false
		}
		s.setPlan(*r.Plan)
	case kindApply, kindApplied:
		if s.plan == nil || r.Action < 0 || r.Action >= len(s.actions) {
			return false
		}
		s.confirmed = true
		if r.Kind == kindApplied {
			s.acted(r)
		} else {
			s.tries[r.Action]++
		}
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

func (s *state) setPlan(p processor.Plan) {
	s.plan = &p
	for _, a := range p.Actions {
		s.actions = append(s.actions, NewAction(a))
	}
	s.tries = make([]int, len(p.Actions))
}

// pending reports whether any action of the plan is left to do.
func (s *state) pending() bool {
	return slices.ContainsFunc(s.actions, func(a v1.Action) bool { return a.Phase != v1.ActionDone })
}

// applied is the plan with what Verify is to know about its actions.
func (s *state) applied() processor.Plan {
	p := *s.plan
	p.Applied = nil
	for _, a := range s.actions {
		p.Applied = append(p.Applied, fault.Applied{Already: a.Already, Undone: a.Phase != v1.ActionDone, Message: a.Message})
	}
	return p
}

// part is a number of actions that belong together, by index: from the first to before the last.
type part struct{ from, to int }

// parts are those of the plan. Numbers that do not fit its actions make it one.
func (s *state) parts() []part {
	var all []part
	from := 0
	for _, n := range s.plan.Parts {
		if n < 0 || n > len(s.actions)-from {
			return []part{{0, len(s.actions)}}
		}
		all = append(all, part{from, from + n})
		from += n
	}
	if from < len(s.actions) {
		return []part{{0, len(s.actions)}}
	}
	return all
}

// complete reports whether one of several parts is done as a whole.
func (s *state) complete() bool {
	return slices.ContainsFunc(s.parts(), func(p part) bool {
		return !slices.ContainsFunc(s.actions[p.from:p.to], func(a v1.Action) bool { return a.Phase != v1.ActionDone })
	})
}

func (s *state) acted(r record) {
	a := &s.actions[r.Action]
	a.Phase, a.Message = v1.ActionDone, r.Message
	a.Calls = append(a.Calls, r.Calls[:min(len(r.Calls), calls.MaxCalls-len(a.Calls))]...)
	switch {
	case r.Reason != "":
		a.Phase = v1.ActionFailed
		if changedNothing(r.Reason) {
			s.tries[r.Action]--
		}
	case s.tries[r.Action] == 1: // an earlier try may have been what did it
		a.Already = r.Already
	}
}

// interrupted is how many attempts ended with the process.
func (s *state) interrupted() int { return s.attempts - s.failures }
