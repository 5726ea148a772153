// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/processor"
)

// Approvals are where the approvals of plans are read and settled.
type Approvals interface {
	// Approval returns the approval that is named for a Diagnosis, from the API server itself; nil if there is none. The caller
	// trusts nothing but the object.
	Approval(ctx context.Context, d *v1.Diagnosis) (*v1.RecoveryApproval, error)
	// Settle stores the status of an approval. It fails if the object has changed since it was read.
	Settle(ctx context.Context, a *v1.RecoveryApproval) error
}

// WaitingError is the error of Run for a Diagnosis that waits for its approval. Nothing runs for it meanwhile.
type WaitingError struct {
	// Until is when it stops to wait.
	Until time.Time
}

// Error implements error.
func (w *WaitingError) Error() string {
	return "Diagnosis waits for an approval until " + printable.Time(w.Until)
}

// replanAfter is how long a plan waits for its approval before it is planned again.
const replanAfter = time.Minute

// approval is the wait of a Diagnosis with mode Approve for the approval of its plan.
type approval struct {
	execution *execution
	// planned is the operation with the plan, which replan makes again.
	planned operationRun
	replan  replan
}

// await returns nil if the plan may be carried out: only if an approval of exactly this plan is there, and the node still
// gives the same plan. A *WaitingError has the Diagnosis wait, and a *terminalError ends it.
func (a *approval) await(ctx context.Context) error {
	x := a.execution
	if s := x.d.Status.Approval; s == nil || s.PlanHash != a.hash() {
		// By the time of the journal, so that one who reads a status that is behind notes the same.
		from := metav1.NewTime(a.planned.StartTime.Truncate(time.Second))
		x.d.Status.Approval = &v1.ApprovalStatus{
			PlanHash: a.hash(), RequestTime: from, ExpirationTime: metav1.NewTime(from.Add(x.d.Spec.ApprovalTimeout())),
		}
	}
	given, err := x.runner.Approvals.Approval(ctx, x.d)
	if err != nil {
		return fmt.Errorf("reading approval: %w", err)
	}
	if given != nil && !given.IsFor(x.d) { // a user who may update the Diagnosis chooses the annotation
		given = nil
	}
	now := time.Now()
	why := a.unusable(given, now)
	if given != nil && why == "" {
		return a.take(ctx, given)
	}
	if given != nil && !given.Settled() {
		if err := a.settle(ctx, given, v1.ApprovalRefused, why); err != nil {
			return err
		}
	}
	s, until := &x.d.Status, x.d.Status.Approval.ExpirationTime.Time
	if !now.Before(until) {
		a.condition(v1.ReasonApprovalExpired, "plan "+a.hash()+" was not approved in time")
		return terminal(v1.ReasonApprovalExpired, "nothing was changed: plan %s was not approved until %s", a.hash(), printable.Time(until))
	}
	if time.Since(s.Approval.RequestTime.Time) >= replanAfter {
		if why, err := a.planChange(ctx); err == nil && why != "" { // an error: it is planned again later
			return a.refuse("waited for approval", why)
		}
	}
	waits := fmt.Sprintf("waits for approval of plan %s until %s", a.hash(), printable.Time(until))
	s.Outcome, s.Summary = v1.OutcomeAwaitingApproval, printable.ClipMiddle("Found "+cmp.Or(firstFault(s.Faults, v1.FaultPresent), "a fault")+"; "+waits, v1.MaxSummaryBytes)
	a.condition(v1.ReasonWaitingForApproval, "Diagnosis "+waits)
	if x.status.isStored() {
		return &WaitingError{Until: until}
	}
	if err := x.status.save(ctx); err != nil {
		return err
	}
	x.runner.Observer.Waiting(x.d)
	return &WaitingError{Until: until}
}

func (a *approval) hash() string { return a.planned.Plan.Hash }

// planChange says how the plan differs that the node gives now; empty if it does not.
func (a *approval) planChange(ctx context.Context) (why string, err error) {
	if a.planned.Outlived {
		return rebooted, nil
	}
	plan, err := a.replan(ctx)
	switch {
	case processor.IsStalled(err):
		return "there is no plan now: " + printable.Line(err.Error()), nil
	case err != nil:
		return "", fmt.Errorf("planning again: %w", err)
	}
	got := planHash(a.execution.runner.Boot, plan.Actions())
	switch {
	case got == a.hash():
		return "", nil
	case len(plan.Actions()) == 0:
		return "there is nothing to repair now: " + printable.Line(plan.NotApplicable), nil
	}
	return "the plan has hash " + got + " now", nil
}

// unusable says why an approval does not allow this plan now; empty if it does.
func (a *approval) unusable(given *v1.RecoveryApproval, now time.Time) string {
	if given == nil {
		return "there is none"
	}
	used := given.Status.State == v1.ApprovalUsed
	switch {
	case given.Spec.PlanHash != a.hash():
		return "it approves another plan: that of the Diagnosis has hash " + a.hash()
	case used && given.Status.DiagnosisUID == a.execution.d.UID: // the agent was stopped after it had taken it
		return ""
	case given.Settled():
		return cmp.Or(given.Status.Message, "it has been used")
	case !now.Before(given.Expires()):
		return "it came too late: it expired at " + printable.Time(given.Expires())
	case !given.CreationTimestamp.Time.Before(a.execution.d.Status.Approval.ExpirationTime.Time):
		return "it came too late: the plan waited until " + printable.Time(a.execution.d.Status.Approval.ExpirationTime.Time)
	}
	return ""
}

// take takes an approval if the node still gives the plan that it approves.
func (a *approval) take(ctx context.Context, given *v1.RecoveryApproval) error {
	why, err := a.planChange(ctx)
	if err != nil {
		return err
	}
	if why != "" {
		refusal := a.refuse("was approved", why)
		if !given.Settled() {
			if err := a.settle(ctx, given, v1.ApprovalRefused, refusal.Error()); err != nil {
				return err
			}
		}
		return refusal
	}
	if !given.Settled() {
		given.Status.DiagnosisUID = a.execution.d.UID
		if err := a.settle(ctx, given, v1.ApprovalUsed, "the agent of node "+a.execution.runner.Node+" carries the plan out"); err != nil {
			return err
		}
	}
	s, now := &a.execution.d.Status, metav1.Now()
	s.Approval.Name, s.Approval.UID, s.Approval.Approver = given.Name, given.UID, given.Spec.Approver
	if s.Approval.ApproveTime == nil {
		s.Approval.ApproveTime = &now
	}
	s.Outcome, s.Summary = "", ""
	a.execution.status.condition(metav1.Condition{
		Type: v1.ConditionApproved, Status: metav1.ConditionTrue, Reason: v1.ReasonApproved,
		Message: fmt.Sprintf("RecoveryApproval %s approves plan %s", given.Name, given.Spec.PlanHash),
	})
	return nil
}

// refuse returns the error that ends the Diagnosis because the node gives another plan by now, which no approval allows.
func (a *approval) refuse(state, why string) error {
	why = fmt.Sprintf("%s: plan %s %s, and %s", a.planned.changed(), a.hash(), state, why)
	a.condition(v1.ReasonPlanChanged, why)
	return terminal(v1.ReasonPlanChanged, "%s", why)
}

// settle stores the end of an approval.
func (a *approval) settle(ctx context.Context, given *v1.RecoveryApproval, state v1.ApprovalState, message string) error {
	now := metav1.Now()
	given.Status.State, given.Status.Message, given.Status.Time = state, printable.Clip(message, maxMessageBytes), &now
	if err := a.execution.runner.Approvals.Settle(ctx, given); err != nil {
		return fmt.Errorf("settling approval %q: %w", given.Name, err)
	}
	return nil
}

// condition says why the plan is not approved.
func (a *approval) condition(reason, message string) {
	a.execution.status.condition(metav1.Condition{Type: v1.ConditionApproved, Status: metav1.ConditionFalse, Reason: reason, Message: message})
}
