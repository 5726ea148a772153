// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
	// trusts nothing but what the object says.
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
	return "Diagnosis waits for an approval until " + w.Until.UTC().Format(time.RFC3339)
}

// approve returns nil if the plan may be carried out: with mode Approve only if an approval of exactly this plan is there, and
// the node still gives the same plan. A *WaitingError has the Diagnosis wait, and a verdict ends it.
func (x *execution) approve(ctx context.Context, r report, again replan) error {
	if x.d.Spec.Mode != v1.ModeApprove {
		return nil
	}
	planned := r.Operations[len(r.Operations)-1]
	hash := planned.Plan.Hash
	x.awaitApproval(hash, planned.StartTime.Time)
	a, err := x.Approvals.Approval(ctx, x.d)
	if err != nil {
		return fmt.Errorf("reading approval: %w", err)
	}
	now := time.Now()
	why := x.unusable(a, hash, now)
	if a != nil && why == "" {
		return x.carryOut(ctx, a, again)
	}
	if a != nil && !a.Settled() {
		if err := x.settle(ctx, a, v1.ApprovalRefused, why); err != nil {
			return err
		}
	}
	if until := x.d.Status.Approval.ExpirationTime.Time; !now.Before(until) {
		x.unapproved(v1.ReasonApprovalExpired, "plan "+hash+" was not approved in time")
		return end(v1.ReasonApprovalExpired, "nothing was changed: plan %s was not approved until %s", hash, stamp(until))
	}
	if err := x.stillPlanned(ctx, hash, again); err != nil {
		return err
	}
	return x.wait(ctx, hash)
}

// replanAfter is how long a plan waits for its approval before it is planned again.
const replanAfter = time.Minute

// stillPlanned ends a Diagnosis that has waited for a while, if the node gives another plan by now: no approval could allow that one.
func (x *execution) stillPlanned(ctx context.Context, hash string, again replan) error {
	if time.Since(x.d.Status.Approval.RequestTime.Time) < replanAfter {
		return nil
	}
	why, err := changed(ctx, hash, again)
	if err != nil || why == "" {
		return nil //nolint:nilerr // it is planned again later
	}
	why = fmt.Sprintf("nothing was changed: plan %s waited for approval, and %s", hash, why)
	x.unapproved(v1.ReasonPlanChanged, why)
	return end(v1.ReasonPlanChanged, "%s", why)
}

// changed says how the plan differs that the node gives now; empty if it does not.
func changed(ctx context.Context, hash string, again replan) (why string, err error) {
	plan, err := again(ctx)
	switch {
	case processor.IsStalled(err):
		return "there is no plan now: " + printable.Line(err.Error()), nil
	case err != nil:
		return "", fmt.Errorf("planning again: %w", err)
	}
	got := planHash(plan.Actions)
	switch {
	case got == hash:
		return "", nil
	case len(plan.Actions) == 0:
		return "there is nothing to repair now: " + printable.Line(plan.NotApplicable), nil
	}
	return "the plan has hash " + got + " now", nil
}

// awaitApproval notes in the status since when this plan waits, once. The time is that of the journal, so that one who reads a
// status that is behind notes the same.
func (x *execution) awaitApproval(hash string, since time.Time) {
	if a := x.d.Status.Approval; a != nil && a.PlanHash == hash {
		return
	}
	from := metav1.NewTime(since.Truncate(time.Second))
	x.d.Status.Approval = &v1.ApprovalStatus{
		PlanHash: hash, RequestTime: from, ExpirationTime: metav1.NewTime(from.Add(x.d.Spec.ApprovalTimeout())),
	}
}

// unusable says why an approval does not allow this plan now; empty if it does.
func (x *execution) unusable(a *v1.RecoveryApproval, hash string, now time.Time) string {
	if a == nil {
		return "there is none"
	}
	used := a.Status.State == v1.ApprovalUsed
	switch {
	case a.Spec.Diagnosis.Name != x.d.Name || a.Namespace != x.d.Namespace || a.Spec.Diagnosis.UID != "" && a.Spec.Diagnosis.UID != x.d.UID:
		return fmt.Sprintf("it approves another Diagnosis than %s with UID %s", x.d.Name, x.d.UID)
	case a.Spec.PlanHash != hash:
		return "it approves another plan: that of the Diagnosis has hash " + hash
	case used && a.Status.DiagnosisUID == x.d.UID: // the agent was stopped after it had taken it
		return ""
	case a.Settled():
		return cmp.Or(a.Status.Message, "it has been used")
	case !now.Before(a.Expires()):
		return "it came too late: it expired at " + stamp(a.Expires())
	case !a.CreationTimestamp.Time.Before(x.d.Status.Approval.ExpirationTime.Time):
		return "it came too late: the plan waited until " + stamp(x.d.Status.Approval.ExpirationTime.Time)
	}
	return ""
}

// carryOut takes an approval if the node still gives the plan that it approves.
func (x *execution) carryOut(ctx context.Context, a *v1.RecoveryApproval, again replan) error {
	why, err := changed(ctx, a.Spec.PlanHash, again)
	if err != nil {
		return err
	}
	if why != "" {
		why = fmt.Sprintf("nothing was changed: plan %s was approved, and %s", a.Spec.PlanHash, why)
		if !a.Settled() {
			if err := x.settle(ctx, a, v1.ApprovalRefused, why); err != nil {
				return err
			}
		}
		x.unapproved(v1.ReasonPlanChanged, why)
		return end(v1.ReasonPlanChanged, "%s", why)
	}
	if !a.Settled() {
		a.Status.DiagnosisUID = x.d.UID
		if err := x.settle(ctx, a, v1.ApprovalUsed, "the agent of node "+x.Node+" carries the plan out"); err != nil {
			return err
		}
	}
	s, now := &x.d.Status, metav1.Now()
	s.Approval.Name, s.Approval.UID, s.Approval.Approver = a.Name, a.UID, a.Spec.Approver
	if s.Approval.ApproveTime == nil {
		s.Approval.ApproveTime = &now
	}
	s.Outcome, s.Summary = "", ""
	x.condition(metav1.Condition{
		Type: v1.ConditionApproved, Status: metav1.ConditionTrue, Reason: v1.ReasonApproved,
		Message: fmt.Sprintf("RecoveryApproval %s approves plan %s", a.Name, a.Spec.PlanHash),
	})
	return nil
}

// settle stores what came of an approval.
func (x *execution) settle(ctx context.Context, a *v1.RecoveryApproval, state v1.ApprovalState, message string) error {
	now := metav1.Now()
	a.Status.State, a.Status.Message, a.Status.Time = state, clip(message, maxMessageBytes), &now
	if err := x.Approvals.Settle(ctx, a); err != nil {
		return fmt.Errorf("settling approval %q: %w", a.Name, err)
	}
	return nil
}

func (x *execution) unapproved(reason, message string) {
	x.condition(metav1.Condition{Type: v1.ConditionApproved, Status: metav1.ConditionFalse, Reason: reason, Message: message})
}

// wait stores that the Diagnosis waits, unless that is stored.
func (x *execution) wait(ctx context.Context, hash string) error {
	s := &x.d.Status
	until := s.Approval.ExpirationTime.Time
	waits := fmt.Sprintf("waits for approval of plan %s until %s", hash, stamp(until))
	s.Outcome, s.Summary = v1.OutcomeAwaitingApproval, clip("Found "+cmp.Or(listed(s.Faults, v1.FaultPresent), "a fault")+"; "+waits, v1.MaxSummaryBytes)
	x.unapproved(v1.ReasonWaitingForApproval, "Diagnosis "+waits)
	printable.Fields(s)
	fit(x.d)
	if same(s, x.stored) {
		return &WaitingError{Until: until}
	}
	if err := x.save(ctx); err != nil {
		return err
	}
	x.Observer.Waiting(x.d)
	return &WaitingError{Until: until}
}

// same reports whether both are the same when they are stored.
func same(a, b *v1.DiagnosisStatus) bool {
	textA, errA := json.Marshal(a)
	textB, errB := json.Marshal(b)
	return errors.Join(errA, errB) == nil && string(textA) == string(textB)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
