// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/processor"
)

// reasonJournal ends a Diagnosis whose journal is of no use: its earlier actions are not known, so there are no more.
const reasonJournal = "JournalUnusable"

// terminalError is an error that ends a Diagnosis: the reason and the message of its condition.
type terminalError struct{ reason, message string }

func (t *terminalError) Error() string { return t.message }

func terminal(reason, format string, args ...any) error {
	return &terminalError{reason: reason, message: fmt.Sprintf(format, args...)}
}

// execution is one call of Run. Its Diagnosis is its own.
type execution struct {
	runner *Runner
	d      *v1.Diagnosis
	status *statusWriter
	// planned is the report when a repair was about to begin.
	planned report
	// underWay makes the report of a plan that was begun: the status is not made for each of its actions.
	underWay func() report
}

// begin accepts the Diagnosis and begins its run, whose progress it writes into the status.
func (x *execution) begin(ctx context.Context) (*run, error) {
	g, notReady := x.readSet(ctx)
	if g != nil {
		x.d.Status.AdjacencyListHash = g.Hash()
	}
	if err := x.accept(ctx); err != nil {
		return nil, err
	}
	if notReady != nil {
		var err error
		if g, err = x.awaitSet(ctx, notReady, x.deadline()); err != nil {
			return nil, err
		}
	}
	job, err := x.job(ctx, g)
	if err != nil {
		return nil, err
	}
	x.status.graph = g
	job.BeforeRepair = x.beforeRepair
	job.OperationEnded = func(r report) {
		x.underWay = nil
		x.status.progress(r)
		x.runner.Observer.OperationEnded(x.d, r.last().OperationRun)
	}
	job.ActionEnded = func(operation string, now func() report, a ActionEnd) {
		x.underWay = now
		x.runner.Observer.ActionEnded(x.d, operation, a)
	}
	return x.runner.begin(job)
}

// end takes in how the run has ended. An error that ends the Diagnosis is a *terminalError.
func (x *execution) end(r report, err error) (report, error) {
	if err != nil && x.underWay != nil {
		x.status.progress(x.underWay())
	}
	t, ended := errors.AsType[*terminalError](err)
	switch {
	case ended && len(x.planned.Operations) > 0: // just before a repair
		o := x.planned.last()
		o.Phase, o.Reason, o.Message, o.CompletionTime = v1.OperationFailed, t.reason, t.message, microTime(time.Now())
		return x.planned, err
	case errors.Is(err, errGraphChanged):
		return r, x.setChanged()
	case errors.Is(err, errCorrupt), errors.Is(err, errFormat), errors.Is(err, errFull):
		return r, terminal(reasonJournal, "Diagnosis cannot go on: %v", err)
	}
	return r, err
}

// accept takes the Diagnosis. One that was accepted before is only written again if the manager thought its agent lost.
func (x *execution) accept(ctx context.Context) error {
	s := &x.d.Status
	accepted := meta.IsStatusConditionTrue(s.Conditions, v1.ConditionAccepted)
	if accepted && s.Phase == v1.DiagnosisRunning && s.StartTime != nil {
		return nil
	}
	if now := metav1.Now(); !accepted || s.StartTime == nil {
		s.StartTime = &now
	}
	s.Phase, s.Target, s.Summary = v1.DiagnosisRunning, x.d.Spec.Target(), ""
	meta.RemoveStatusCondition(&s.Conditions, v1.ConditionComplete)
	x.status.condition(metav1.Condition{
		Type: v1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1.ReasonAccepted,
		Message: "Diagnosis is accepted by agent on node " + x.runner.Node,
	})
	if err := x.status.save(ctx); err != nil {
		return err
	}
	if !accepted {
		x.runner.Observer.Accepted(x.d)
	}
	return nil
}

// beforeRepair stores the plan. It also has the last word: nothing is repaired for another set than that which began, and for another plan
// than that which was agreed to.
func (x *execution) beforeRepair(ctx context.Context, r report, again replan) error {
	x.planned = r
	_, err := x.readSet(ctx)
	if _, ended := errors.AsType[*terminalError](err); ended {
		err = x.setChanged()
	}
	if err != nil {
		return err
	}
	x.status.progress(r)
	switch o, want := r.last(), x.d.Spec.PlanHash; {
	case want == "":
	case o.Plan.Hash != want:
		return terminal(v1.ReasonPlanChanged, "nothing was changed: the plan has hash %s now, and spec.planHash names %s; look at the plan, and "+
			"create a Diagnosis with its hash", o.Plan.Hash, want)
	case o.Outlived:
		return terminal(v1.ReasonPlanChanged, "%s: plan %s was made, and %s; look for the fault again", o.changed(), want, rebooted)
	}
	if x.d.Spec.Mode == v1.ModeApprove {
		a := approval{execution: x, planned: *r.last(), replan: again}
		if err := a.await(ctx); err != nil {
			return err
		}
	}
	return x.status.save(ctx)
}

// job makes the job of the Diagnosis. If there is none, the error is a *terminalError.
func (x *execution) job(ctx context.Context, g *graph.Graph) (job, error) {
	if errs := x.d.Spec.Validate(); len(errs) > 0 {
		return job{}, terminal(v1.ReasonInvalid, "%s", v1.Message(errs))
	}
	if x.d.Spec.Mode == v1.ModeApprove && x.runner.Approvals == nil {
		return job{}, terminal(v1.ReasonInvalid, "spec.mode: a plan cannot be approved without an API server: use mode Plan")
	}
	x.d.Status.AdjacencyListHash = g.Hash()
	r := processor.Request{
		Diagnosis: processor.Diagnosis{UID: string(x.d.UID), Namespace: x.d.Namespace, Name: x.d.Name},
		Node:      x.runner.Node,
		Values:    x.d.Spec.Parameters,
	}
	if p := x.d.Spec.PodReference; p != nil {
		r.Pod = processor.Pod{Namespace: p.Namespace, Name: p.Name, Container: p.Container}
	}
	operations, err := x.readOperations(ctx, g)
	return job{
		Request: r, Graph: g, Operations: operations, Deadline: x.deadline(), MaxResults: statusLimit(x.d) / 2,
		PlanOnly: x.d.Spec.Mode == v1.ModePlan, Agreed: x.d.Spec.Mode == v1.ModeApprove || x.d.Spec.PlanHash != "",
	}, err
}

// deadline counts from when the Diagnosis was first taken, however often it was begun again. It does not pass while a plan
// waits for its approval, and counts again from then on.
func (x *execution) deadline() time.Time {
	limit, _ := x.limit()
	from := x.d.Status.StartTime.Time
	if a := x.d.Status.Approval; a != nil {
		from = time.Now()
		if a.ApproveTime != nil {
			from = a.ApproveTime.Time
		}
	}
	return from.Add(limit)
}

// limit is how long the Diagnosis may run, and which setting says so, as the user knows it.
func (x *execution) limit() (limit time.Duration, setting string) {
	if seconds := x.d.Spec.ActiveDeadlineSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second, fmt.Sprintf("spec.activeDeadlineSeconds: %d", *seconds)
	}
	return x.runner.DefaultDeadline, fmt.Sprintf("the agent's --diagnosis-timeout: %s", x.runner.DefaultDeadline)
}
