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
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// repair makes one attempt of a repair: it plans, unless there is a plan already, and has the engine do the rest of it. The time
// limit holds for all of it together, BeforeRepair left out.
func (n *nodeRun) repair(ctx context.Context) (processor.Result, error) {
	begin := time.Now()
	if n.isToPlan() { // else one that was decided on is resumed
		if err := n.op.Step.CheckParameters(n.run.job.Request.Values); err != nil {
			return processor.Result{}, err
		}
		n.state.plan, n.state.actions = nil, nil // those of an earlier boot
		plan, err := n.makePlan(ctx)
		if err != nil || plan.NotApplicable != "" {
			return processor.Result{NotApplicable: plan.NotApplicable, Findings: plan.Left, Gone: plan.Gone}, err
		}
		text, err := json.Marshal(plan)
		if err != nil {
			return processor.Result{}, processor.Stalled(fmt.Errorf("writing plan: %w", err))
		}
		if len(text) > maxPlanBytes {
			return processor.Result{}, processor.Stalled(fmt.Errorf("writing plan: %d bytes with %d actions, at most %d", len(text), len(plan.Actions()), maxPlanBytes))
		}
		r := record{Kind: kindPlan, Node: n.id, Plan: &plan, Boot: n.run.runner.Boot}
		if err := n.run.journal.announce(r); err != nil {
			return processor.Result{}, err
		}
		n.state.apply(r) // from here on it is the only plan
	}
	if n.endsWithPlan() {
		return processor.Result{}, nil
	}
	left := n.op.Timeout - time.Since(begin)
	if err := n.confirmPlan(ctx); err != nil {
		return processor.Result{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, left, timeoutCause(n.op))
	defer cancel()
	result, err := n.engine().Execute(ctx, n.run.request(), n.state.plan, n)
	result.Gone = n.state.plan.Gone
	return result, err
}

// isToPlan reports whether a plan is to be made: there is none, or its mounts and devices have ended with the boot. An agreed plan
// is not made again, but refused.
func (n *nodeRun) isToPlan() bool {
	return n.state.plan == nil || n.state.outlived(n.run.runner.Boot) && !n.run.job.Agreed
}

// endsWithPlan reports whether the run ends with the plan of the node, because nothing may be changed.
func (n *nodeRun) endsWithPlan() bool {
	return n.op.Step.Processor == nil && n.run.job.PlanOnly && len(n.state.actions) > 0
}

// engine carries out the plan of the node.
func (n *nodeRun) engine() *repair.Engine {
	known := n.run.runner.Registry
	e := &repair.Engine{
		Gate: n.run.runner.Gate, Lock: n.run.runner.Exclusive, Calls: n.run.runner.calls,
		Await: func(ctx context.Context, r processor.Request, w *processor.Wait) (processor.Result, error) {
			return repair.Call(ctx, n.run.runner.calls, r, w.Await)
		},
		Family: func(name string) (repair.Family, bool) {
			if f := n.op.Step.Family; f != nil && f.Name() == name {
				return f, true
			}
			if known == nil {
				return nil, false
			}
			f := known.steps[name].Family
			return f, f != nil
		},
	}
	if known != nil {
		e.Evictor, e.Records = known.Evictor, known.Records
	}
	return e
}

func (n *nodeRun) makePlan(ctx context.Context) (repair.Plan, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, n.op.Timeout, timeoutCause(n.op))
	defer cancel()
	return n.engine().Plan(ctx, n.run.request(), func(ctx context.Context, r processor.Request) (repair.Plan, error) {
		if p := n.op.Step.Planner; p != nil {
			return p.Plan(ctx, r)
		}
		part, err := n.op.Step.Family.Plan(ctx, r)
		return repair.PlanOf(n.op.Step.Family.Name(), part), err
	})
}

// confirmPlan asks BeforeRepair once, if there is something left to do.
func (n *nodeRun) confirmPlan(ctx context.Context) error {
	pending := slices.ContainsFunc(n.state.actions, func(a v1.Action) bool { return a.Phase != v1.ActionDone })
	if !pending || n.state.confirmed && !n.state.outlived(n.run.runner.Boot) || n.run.job.BeforeRepair == nil {
		return nil
	}
	if err := n.run.job.BeforeRepair(ctx, n.run.partialReport(n), n.makePlan); err != nil {
		return &fatal{err}
	}
	n.state.confirmed = true
	return nil
}

// Announce implements repair.Journal: the journal of the run keeps how far a repair is. Its errors are fatal.
func (n *nodeRun) Announce(_ context.Context, action int) error {
	r := record{Kind: kindApply, Node: n.id, Action: actionRecord{Index: action}}
	if err := n.run.journal.announce(r); err != nil {
		return err
	}
	n.state.apply(r)
	return nil
}

// Note implements repair.Journal.
func (n *nodeRun) Note(ctx context.Context, e repair.End) error {
	r := record{
		Kind: kindApplied, Node: n.id, Action: actionRecord{Index: e.Action, Already: e.Applied.Already}, Message: sanitize(e.Applied.Message),
	}
	for _, c := range e.Calls {
		r.Action.Calls = append(r.Action.Calls, v1.ActionCall{Name: sanitize(c.Name), Arguments: sanitize(c.Arguments), Result: sanitize(c.Result)})
	}
	if e.Err != nil {
		r.Action.Already, r.Reason, r.Message = false, reasonOf(ctx, e.Err), sanitize(e.Err.Error())
		if _, waiting := errors.AsType[*processor.WaitingError](e.Err); waiting {
			r.Reason = reasonWaiting
		}
	}
	if err := n.run.journal.write(r); err != nil {
		return err
	}
	n.state.apply(r)
	if n.run.job.ActionEnded != nil {
		n.run.job.ActionEnded(n.op.Name, func() report { return n.run.partialReport(n) }, ActionEnd{Action: n.state.actions[e.Action], Waiting: changedNothing(r.Reason)})
	}
	return nil
}

// Verify implements repair.Journal.
func (n *nodeRun) Verify(context.Context) error {
	return n.run.journal.write(record{Kind: kindVerify, Node: n.id})
}

// Progress implements repair.Journal.
func (n *nodeRun) Progress() (all []fault.Applied) {
	for _, a := range n.state.actions {
		all = append(all, fault.Applied{Already: a.Already, Undone: a.Phase != v1.ActionDone, Message: a.Message})
	}
	return all
}

// changedNothing reports whether an action with this reason has changed nothing, because it may not be done yet.
func changedNothing(reason string) bool { return reason == reasonWaiting || reason == reasonHeld }
