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
	"kubediag.org/kubediag/internal/printable"
)

// reasonJournal ends a Diagnosis whose journal is of no use: what was done before is not known, so nothing more is.
const reasonJournal = "JournalUnusable"

// verdict is an error that ends a Diagnosis: the reason and the message of its condition.
type verdict struct{ reason, message string }

func (v *verdict) Error() string { return v.message }

func end(reason, format string, args ...any) error {
	return &verdict{reason: reason, message: fmt.Sprintf(format, args...)}
}

// execution is one call of Run. d is its own, and always what the status is to be.
type execution struct {
	*Runner
	d     *v1.Diagnosis
	graph *graph.Graph
	// stored is the status as it is stored.
	stored *v1.DiagnosisStatus
}

func (x *execution) run(ctx context.Context) error {
	report, err := x.steps(ctx)
	if ctx.Err() != nil {
		return fmt.Errorf("running Diagnosis: %w", context.Cause(ctx))
	}
	v := x.verdictOn(report)
	if err != nil && !errors.As(err, &v) {
		return err
	}
	x.conclude(report, v)
	if err := x.save(ctx); err != nil {
		return err
	}
	x.Observer.Ended(x.d)
	return nil
}

// steps does all that is to be done. A verdict is an error here.
func (x *execution) steps(ctx context.Context) (report, error) {
	g, notReady := x.set(ctx)
	if g != nil {
		x.d.Status.AdjacencyListHash = g.Hash()
	}
	if err := x.accept(ctx); err != nil {
		return report{}, err
	}
	if notReady != nil {
		var err error
		if g, err = x.awaitSet(ctx, notReady); err != nil {
			return report{}, err
		}
	}
	job, err := x.job(ctx, g)
	if err != nil {
		return report{}, err
	}
	return x.pipeline(ctx, job)
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
	x.condition(metav1.Condition{
		Type: v1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1.ReasonAccepted,
		Message: "Diagnosis is accepted by agent on node " + x.Node,
	})
	if err := x.save(ctx); err != nil {
		return err
	}
	if !accepted {
		x.Observer.Accepted(x.d)
	}
	return nil
}

func (x *execution) condition(c metav1.Condition) {
	c.Message, c.ObservedGeneration = clip(c.Message, maxMessageBytes), x.d.Generation
	meta.SetStatusCondition(&x.d.Status.Conditions, c)
}

func (x *execution) save(ctx context.Context) error {
	printable.Fields(&x.d.Status)
	fit(x.d)
	if err := x.Store.Save(ctx, x.d.DeepCopy()); err != nil {
		return fmt.Errorf("saving status: %w", err)
	}
	x.stored = x.d.Status.DeepCopy()
	return nil
}

// pipeline runs the job, and reports its progress.
func (x *execution) pipeline(ctx context.Context, job job) (report, error) {
	var last report
	job.BeforeRepair = func(ctx context.Context, r report, again replan) error {
		last = r
		return x.beforeRepair(ctx, r, again)
	}
	job.OperationEnded = func(r report) {
		x.progress(r)
		x.Observer.OperationEnded(x.d, r.Operations[len(r.Operations)-1].OperationRun)
	}
	job.ActionEnded = func(r report, a ActionEnd) {
		x.progress(r)
		x.Observer.ActionEnded(x.d, r.Operations[len(r.Operations)-1].Operation, a)
	}
	report, err := x.Runner.run(ctx, job)
	var v *verdict
	switch {
	case errors.As(err, &v):
		return refused(last, v), err
	case errors.Is(err, ErrGraphChanged):
		return report, x.changed()
	case errors.Is(err, ErrCorrupt), errors.Is(err, ErrFormat), errors.Is(err, ErrFull):
		return report, end(reasonJournal, "Diagnosis cannot go on: %v", err)
	}
	return report, err
}

// beforeRepair stores the plan. It also has the last word: nothing is repaired for a set that is not the one that began.
func (x *execution) beforeRepair(ctx context.Context, r report, again replan) error {
	if _, err := x.set(ctx); err != nil {
		var v *verdict
		if errors.As(err, &v) {
			return x.changed()
		}
		return err
	}
	x.progress(r)
	if err := x.checkPlan(r); err != nil {
		return err
	}
	if err := x.approve(ctx, r, again); err != nil {
		return err
	}
	return x.save(ctx)
}

// refused is the report of a run that ended just before a repair.
func refused(r report, v *verdict) report {
	o := &r.Operations[len(r.Operations)-1]
	o.Phase, o.Reason, o.Message, o.CompletionTime = v1.OperationFailed, v.reason, v.message, microTime(time.Now())
	return r
}
