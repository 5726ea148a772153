// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/processor"
)

// repair makes one attempt of a recoverer: it plans, unless there is a plan already, does what of it is not done, and
// verifies. The time limit holds for all of it together, but for what BeforeRepair takes.
func (n *nodeRun) repair(ctx context.Context) (processor.Result, error) {
	begin := time.Now()
	if n.plan == nil {
		plan, err := n.makePlan(ctx)
		if err != nil || plan.NotApplicable != "" {
			return processor.Result{NotApplicable: plan.NotApplicable, Findings: plan.Findings, Gone: plan.Gone}, err
		}
		if err := n.recordPlan(plan); err != nil {
			return processor.Result{}, err
		}
	}
	if n.job.PlanOnly && len(n.actions) > 0 {
		return processor.Result{}, errPlanned
	}
	left := n.op.Timeout - time.Since(begin)
	if err := n.confirmPlan(ctx); err != nil {
		return processor.Result{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, left, timeoutCause(n.op))
	defer cancel()
	failed := n.actExclusively(ctx)
	if failed != nil && (isFatal(failed) || ctx.Err() != nil || !n.complete()) {
		return processor.Result{}, failed
	}
	result, err := n.verify(ctx)
	result.Gone = n.plan.Gone
	return result, joinFailures(failed, err)
}

// errPlanned says that the run ends here, because nothing may be changed.
var errPlanned = errors.New("the plan is made, and nothing is to be changed")

// heldActions asks the rules about the actions of a plan that is not to be carried out: why some are forbidden, and how many. If a rule
// does not answer, that is a reason, too, and the action does not count as forbidden.
func (n *nodeRun) heldActions(ctx context.Context) (reasons []string, count int32) {
	holder, ok := n.op.Step.Recoverer.(processor.Holder)
	if !ok {
		return nil, 0
	}
	r := n.request()
	for _, a := range n.plan.Actions {
		why, err := holder.Held(ctx, r, a)
		if why != "" {
			count++
		}
		if err != nil {
			why = err.Error()
		}
		if why = sanitize(why); why != "" && !slices.Contains(reasons, why) && len(reasons) < maxHeld {
			reasons = append(reasons, why)
		}
	}
	return reasons, count
}

// actExclusively does the plan while no other program of the node repairs, if there is anything left to do.
func (n *nodeRun) actExclusively(ctx context.Context) error {
	if n.Exclusive == nil || !n.pending() {
		return n.actInParts(ctx)
	}
	release, err := n.Exclusive(ctx)
	if err != nil {
		return fmt.Errorf("waiting for another program that repairs (create another Diagnosis when it has ended): %w", wrapTimeout(ctx, err))
	}
	defer release()
	return n.actInParts(ctx)
}

// actInParts does one part of the plan after another. A failure in one does not keep the others from being done.
func (n *nodeRun) actInParts(ctx context.Context) error {
	var failed error
	for _, p := range n.parts() {
		for i := p.from; i < p.to; i++ {
			err := n.act(ctx, i)
			if isFatal(err) || err != nil && ctx.Err() != nil {
				return err
			}
			if err != nil {
				failed = joinFailures(failed, err)
				break
			}
		}
	}
	return failed
}

// isFatal reports whether an error ends the run.
func isFatal(err error) bool {
	_, ok := errors.AsType[*fatal](err)
	return ok
}

// joinFailures is the error of two parts, either of which may be nil. It is worth another try if one of them is,
// and held only if both are.
func joinFailures(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil, a.Error() == b.Error():
		return a
	case processor.IsStalled(a) && !processor.IsStalled(b), processor.IsHeld(a) && !processor.IsHeld(b):
		a, b = b, a
	}
	return fmt.Errorf("%w; %s", a, b.Error())
}

func (n *nodeRun) makePlan(ctx context.Context) (processor.Plan, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, n.op.Timeout, timeoutCause(n.op))
	defer cancel()
	r := n.request()
	plan, err := guard(ctx, n.Runner, r, func(ctx context.Context) (processor.Plan, error) {
		return n.op.Step.Recoverer.Plan(ctx, r)
	})
	if err != nil {
		return plan, fmt.Errorf("planning: %w", err)
	}
	return plan, nil
}

// recordPlan writes a plan down. From here on it is the only one.
func (n *nodeRun) recordPlan(plan processor.Plan) error {
	text, err := json.Marshal(plan)
	if err != nil {
		return processor.Stalled(fmt.Errorf("writing plan: %w", err))
	}
	if len(text) > maxPlanBytes {
		return processor.Stalled(fmt.Errorf("writing plan: %d bytes with %d actions, at most %d", len(text), len(plan.Actions), maxPlanBytes))
	}
	r := record{Kind: kindPlan, Node: n.id, Plan: &plan}
	if err := n.journal.announce(r); err != nil {
		return err
	}
	n.apply(r)
	return nil
}

// confirmPlan asks BeforeRepair once, if there is something left to do.
func (n *nodeRun) confirmPlan(ctx context.Context) error {
	if !n.pending() || n.confirmed || n.job.BeforeRepair == nil {
		return nil
	}
	if err := n.job.BeforeRepair(ctx, n.partialReport(n), n.makePlan); err != nil {
		return &fatal{err}
	}
	n.confirmed = true
	return nil
}

// act does one action, unless it is done.
func (n *nodeRun) act(ctx context.Context, i int) error {
	action := n.plan.Actions[i]
	if n.actions[i].Phase == v1.ActionDone {
		return nil
	}
	if ctx.Err() != nil {
		return wrapTimeout(ctx, context.Cause(ctx))
	}
	begin := record{Kind: kindApply, Node: n.id, actionRecord: actionRecord{Action: i}}
	if err := n.journal.announce(begin); err != nil {
		return err
	}
	n.apply(begin)
	request, log := n.request(), &calls.Log{}
	applied, err := guard(calls.With(ctx, log), n.Runner, request, func(ctx context.Context) (fault.Applied, error) {
		return n.op.Step.Recoverer.Apply(ctx, request, action)
	})
	if err != nil && interruption(ctx) != nil {
		return err // not a failure of the action
	}
	r := record{Kind: kindApplied, Node: n.id, actionRecord: actionRecord{i, applied.Already, callsOf(log)}, Message: sanitize(applied.Message)}
	if err != nil {
		r.Already, r.Reason, r.Message = false, reasonOf(ctx, err), sanitize(err.Error())
		if !processor.IsHeld(err) { // a rule is about the fault, not about one mount
			err = fmt.Errorf("%s of %q: %w", action.Kind, action.Target, err)
		}
		if _, waiting := errors.AsType[*processor.WaitingError](err); waiting {
			r.Reason = reasonWaiting
		}
	}
	if err := n.journal.write(r); err != nil {
		return err
	}
	n.apply(r)
	if n.job.ActionEnded != nil {
		n.job.ActionEnded(n.partialReport(n), ActionEnd{Action: n.actions[i], Waiting: changedNothing(r.Reason)})
	}
	return err
}

// changedNothing reports whether an action with this reason has changed nothing, because it may not be done yet.
func changedNothing(reason string) bool { return reason == reasonWaiting || reason == ReasonHeld }

// callsOf are the calls of a log with texts that are fit for people.
func callsOf(log *calls.Log) (all []v1.ActionCall) {
	for _, c := range log.All() {
		all = append(all, v1.ActionCall{Name: sanitize(c.Name), Arguments: sanitize(c.Arguments), Result: sanitize(c.Result)})
	}
	return all
}

func (n *nodeRun) verify(ctx context.Context) (processor.Result, error) {
	if err := n.journal.write(record{Kind: kindVerify, Node: n.id}); err != nil {
		return processor.Result{}, err
	}
	r, plan := n.request(), n.applied()
	plan.Findings = slices.Clone(plan.Findings) // a proof that is left behind may still write to them
	result, err := guard(ctx, n.Runner, r, func(ctx context.Context) (processor.Result, error) {
		return n.op.Step.Recoverer.Verify(ctx, r, plan)
	})
	if err != nil {
		return result, fmt.Errorf("verifying: %w", err)
	}
	return result, nil
}
