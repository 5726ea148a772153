// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/processor"
)

// repair makes one attempt of a recoverer: it plans, unless there is a plan already, does what of it is not done, and
// verifies. The time limit holds for all of it together, but for what BeforeRepair takes.
func (x *run) repair(ctx context.Context, id int32, s *state) (processor.Result, error) {
	op, begin := x.job.Operations[id], time.Now()
	if s.plan == nil {
		plan, err := x.plan(ctx, op)
		if err != nil || plan.NotApplicable != "" {
			return processor.Result{NotApplicable: plan.NotApplicable, Findings: plan.Findings, Gone: plan.Gone}, err
		}
		if err := x.decide(id, s, plan); err != nil {
			return processor.Result{}, err
		}
	}
	if x.job.PlanOnly && len(s.actions) > 0 {
		return processor.Result{}, errPlanned
	}
	left := op.Timeout - time.Since(begin)
	if err := x.agree(ctx, id, s); err != nil {
		return processor.Result{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, left, limited(op))
	defer cancel()
	failed := x.exclusive(ctx, id, s)
	if failed != nil && (stops(failed) || ctx.Err() != nil || !s.complete()) {
		return processor.Result{}, failed
	}
	result, err := x.verify(ctx, id, s.applied())
	result.Gone = s.plan.Gone
	return result, together(failed, err)
}

// errPlanned says that the run ends here, because nothing may be changed.
var errPlanned = errors.New("the plan is made, and nothing is to be changed")

// exclusive does the plan while no other program of the node repairs, if there is anything left to do.
func (x *run) exclusive(ctx context.Context, id int32, s *state) error {
	if x.job.Exclusive == nil || !s.pending() {
		return x.parts(ctx, id, s)
	}
	release, err := x.job.Exclusive(ctx)
	if err != nil {
		return fmt.Errorf("waiting for another program that repairs: %w", timed(ctx, err))
	}
	defer release()
	return x.parts(ctx, id, s)
}

// parts does one part of the plan after another. A failure in one does not keep the others from being done.
func (x *run) parts(ctx context.Context, id int32, s *state) error {
	var failed error
	for _, p := range s.parts() {
		for i := p.from; i < p.to; i++ {
			err := x.act(ctx, id, s, i)
			if stops(err) || err != nil && ctx.Err() != nil {
				return err
			}
			if err != nil {
				failed = together(failed, err)
				break
			}
		}
	}
	return failed
}

// stops reports whether an error ends the run.
func stops(err error) bool {
	f := (*fatal)(nil)
	return errors.As(err, &f)
}

// together is the error of two parts, either of which may be nil. It is worth another try if one of them is.
func together(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case processor.IsStalled(a):
		a, b = b, a
	}
	return fmt.Errorf("%w; %s", a, b.Error())
}

func (x *run) plan(ctx context.Context, op operation) (processor.Plan, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, op.Timeout, limited(op))
	defer cancel()
	r := x.request()
	plan, err := guard(ctx, x.Runner, func(ctx context.Context) (processor.Plan, error) {
		return op.Step.Recoverer.Plan(ctx, r)
	})
	if err != nil {
		return plan, fmt.Errorf("planning: %w", err)
	}
	return plan, nil
}

// decide writes a plan down. From here on it is the only one.
func (x *run) decide(id int32, s *state, plan processor.Plan) error {
	text, err := json.Marshal(plan)
	if err != nil {
		return processor.Stalled(fmt.Errorf("writing plan: %w", err))
	}
	if len(text) > maxPlanBytes {
		return processor.Stalled(fmt.Errorf("writing plan: %d bytes with %d actions, at most %d", len(text), len(plan.Actions), maxPlanBytes))
	}
	r := record{Kind: kindPlan, Node: id, Plan: &plan}
	if err := x.announce(r); err != nil {
		return err
	}
	s.apply(r)
	return nil
}

// agree asks BeforeRepair once, if there is something left to do.
func (x *run) agree(ctx context.Context, id int32, s *state) error {
	if !s.pending() || s.agreed || x.job.BeforeRepair == nil {
		return nil
	}
	again := func(ctx context.Context) (processor.Plan, error) { return x.plan(ctx, x.job.Operations[id]) }
	if err := x.job.BeforeRepair(ctx, x.soFar(id, s), again); err != nil {
		return &fatal{err}
	}
	s.agreed = true
	return nil
}

// act does one action, unless it is done.
func (x *run) act(ctx context.Context, id int32, s *state, i int) error {
	action := s.plan.Actions[i]
	if s.actions[i].Phase == v1.ActionDone {
		return nil
	}
	if ctx.Err() != nil {
		return timed(ctx, context.Cause(ctx))
	}
	begin := record{Kind: kindApply, Node: id, Action: i}
	if err := x.announce(begin); err != nil {
		return err
	}
	s.apply(begin)
	op, request, log := x.job.Operations[id], x.request(), &calls.Log{}
	applied, err := guard(calls.With(ctx, log), x.Runner, func(ctx context.Context) (fault.Applied, error) {
		return op.Step.Recoverer.Apply(ctx, request, action)
	})
	if err != nil && stopped(ctx) != nil {
		return err // not a failure of the action
	}
	r := record{Kind: kindApplied, Node: id, Action: i, Already: applied.Already, Message: told(applied.Message), Calls: callsOf(log)}
	if err != nil {
		r.Already, r.Reason, r.Message = false, reasonOf(ctx, err), told(err.Error())
		err = fmt.Errorf("%s of %q: %w", action.Kind, action.Target, err)
		if waiting := (*processor.WaitingError)(nil); errors.As(err, &waiting) {
			r.Reason = reasonWaiting
		}
	}
	if err := x.journal.write(r); err != nil {
		return &fatal{err}
	}
	s.apply(r)
	if x.job.ActionEnded != nil {
		x.job.ActionEnded(x.soFar(id, s), ActionEnd{Action: s.actions[i], Waiting: r.Reason == reasonWaiting})
	}
	return err
}

// callsOf are the calls of a log with texts that are fit for people.
func callsOf(log *calls.Log) (all []v1.ActionCall) {
	for _, c := range log.All() {
		all = append(all, v1.ActionCall{Name: told(c.Name), Arguments: told(c.Arguments), Result: told(c.Result)})
	}
	return all
}

func (x *run) verify(ctx context.Context, id int32, plan processor.Plan) (processor.Result, error) {
	if err := x.journal.write(record{Kind: kindVerify, Node: id}); err != nil {
		return processor.Result{}, &fatal{err}
	}
	op, r := x.job.Operations[id], x.request()
	result, err := guard(ctx, x.Runner, func(ctx context.Context) (processor.Result, error) {
		return op.Step.Recoverer.Verify(ctx, r, plan)
	})
	if err != nil {
		return result, fmt.Errorf("verifying: %w", err)
	}
	return result, nil
}
