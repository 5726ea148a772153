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
	"kubediag.org/kubediag/internal/repair"
)

// repair makes one attempt of a repair: it plans, unless there is a plan already, and has the engine do what of it is not done. The time
// limit holds for all of it together, but for what BeforeRepair takes.
func (n *nodeRun) repair(ctx context.Context) (processor.Result, error) {
	begin := time.Now()
	if n.isToPlan() {
		n.plan, n.actions = nil, nil // those of an earlier boot
		plan, err := n.makePlan(ctx)
		if err != nil || plan.NotApplicable != "" {
			return processor.Result{NotApplicable: plan.NotApplicable, Findings: plan.Left, Gone: plan.Gone}, err
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
	result, err := n.engine().Execute(ctx, n.request(), n.plan, repairJournal{n})
	result.Gone = n.plan.Gone
	return result, err
}

// isToPlan reports whether a plan is to be made: there is none, or its mounts and devices have ended with the boot. An agreed plan
// is not made again, but refused.
func (n *nodeRun) isToPlan() bool { return n.plan == nil || n.outlived(n.Boot) && !n.job.Agreed }

// errPlanned says that the run ends here, because nothing may be changed.
var errPlanned = errors.New("the plan is made, and nothing is to be changed")

// engine is what carries the plan of the node out.
func (n *nodeRun) engine() *repair.Engine {
	e := &repair.Engine{
		Gate: n.Gate, Lock: n.Exclusive, Calls: n.calls,
		Family: func(name string) (repair.Family, bool) {
			if f := n.op.Step.Family; f != nil && f.Name() == name {
				return f, true
			}
			return n.Registry.family(name)
		},
	}
	if n.Registry != nil {
		e.Evictor, e.Records = n.Registry.Evictor, n.Registry.Records
	}
	return e
}

func (n *nodeRun) makePlan(ctx context.Context) (repair.Plan, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, n.op.Timeout, timeoutCause(n.op))
	defer cancel()
	return n.engine().Plan(ctx, n.request(), n.op.Step.plan)
}

// recordPlan writes a plan down. From here on it is the only one.
func (n *nodeRun) recordPlan(plan repair.Plan) error {
	text, err := json.Marshal(plan)
	if err != nil {
		return processor.Stalled(fmt.Errorf("writing plan: %w", err))
	}
	if len(text) > maxPlanBytes {
		return processor.Stalled(fmt.Errorf("writing plan: %d bytes with %d actions, at most %d", len(text), len(plan.Actions()), maxPlanBytes))
	}
	r := record{Kind: kindPlan, Node: n.id, Plan: &plan, Boot: n.Boot}
	if err := n.journal.announce(r); err != nil {
		return err
	}
	n.apply(r)
	return nil
}

// confirmPlan asks BeforeRepair once, if there is something left to do.
func (n *nodeRun) confirmPlan(ctx context.Context) error {
	if !n.pending() || n.confirmed && !n.outlived(n.Boot) || n.job.BeforeRepair == nil {
		return nil
	}
	if err := n.job.BeforeRepair(ctx, n.partialReport(n), n.makePlan); err != nil {
		return &fatal{err}
	}
	n.confirmed = true
	return nil
}

// repairJournal keeps in the journal of a run how far a repair is. Its errors are fatal.
type repairJournal struct{ *nodeRun }

// Announce implements repair.Journal.
func (j repairJournal) Announce(_ context.Context, action int) error {
	r := record{Kind: kindApply, Node: j.id, actionRecord: actionRecord{Action: action}}
	if err := j.journal.announce(r); err != nil {
		return err
	}
	j.apply(r)
	return nil
}

// Note implements repair.Journal.
func (j repairJournal) Note(ctx context.Context, e repair.End) error {
	r := record{
		Kind: kindApplied, Node: j.id, actionRecord: actionRecord{e.Action, e.Applied.Already, callsOf(e.Calls)}, Message: sanitize(e.Applied.Message),
	}
	if e.Err != nil {
		r.Already, r.Reason, r.Message = false, reasonOf(ctx, e.Err), sanitize(e.Err.Error())
		if _, waiting := errors.AsType[*processor.WaitingError](e.Err); waiting {
			r.Reason = reasonWaiting
		}
	}
	if err := j.journal.write(r); err != nil {
		return err
	}
	j.apply(r)
	if j.job.ActionEnded != nil {
		j.job.ActionEnded(j.partialReport(j.nodeRun), ActionEnd{Action: j.actions[e.Action], Waiting: changedNothing(r.Reason)})
	}
	return nil
}

// Verify implements repair.Journal.
func (j repairJournal) Verify(context.Context) error {
	return j.journal.write(record{Kind: kindVerify, Node: j.id})
}

// Progress implements repair.Journal.
func (j repairJournal) Progress() (all []fault.Applied) {
	for _, a := range j.actions {
		all = append(all, fault.Applied{Already: a.Already, Undone: a.Phase != v1.ActionDone, Message: a.Message})
	}
	return all
}

// changedNothing reports whether an action with this reason has changed nothing, because it may not be done yet.
func changedNothing(reason string) bool { return reason == reasonWaiting || reason == ReasonHeld }

// callsOf are calls with texts that are fit for people.
func callsOf(log []calls.Call) (all []v1.ActionCall) {
	for _, c := range log {
		all = append(all, v1.ActionCall{Name: sanitize(c.Name), Arguments: sanitize(c.Arguments), Result: sanitize(c.Result)})
	}
	return all
}
