// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
	"kubediag.org/kubediag/internal/share"
)

const (
	maxAttempts = 3
	// maxInterrupted is how often an operation is begun again after the process ended during it.
	maxInterrupted = 10
	firstBackoff   = time.Second
	maxBackoff     = 30 * time.Second
)

// fatal is an error that is not the operation's: the run ends here and goes on another time.
type fatal struct{ err error }

func (f *fatal) Error() string { return f.err.Error() }
func (f *fatal) Unwrap() error { return f.err }

// nodeRun is the run of one node.
type nodeRun struct {
	run   *run
	state *state
	id    int32
	op    operation
}

// finish brings the node to its end by one attempt after another, or remembers it, and adds it to the report the first time it is met.
func (n *nodeRun) finish(ctx context.Context) error {
	if n.state.reported {
		return nil
	}
	if n.state.reported = true; n.state.done != nil {
		return n.remember()
	}
	for n.state.done == nil {
		end, err := n.beginAttempt(ctx)
		if err != nil {
			return err
		}
		if end.Kind == "" {
			attempt := n.look
			if n.op.Step.Processor == nil {
				attempt = n.repair
			}
			result, err := attempt(ctx)
			if end, err = n.endAttempt(ctx, result, err); err != nil {
				return err
			}
		}
		if err := n.run.journal.write(end); err != nil {
			return err
		}
		if n.state.apply(end); n.state.done == nil {
			if err := sleep(ctx, end.wait); err != nil {
				return fmt.Errorf("waiting for another attempt: %w", err)
			}
		}
	}
	if n.run.job.OperationEnded != nil {
		n.run.job.OperationEnded(n.run.partialReport(n))
	}
	n.run.report.Operations = append(n.run.report.Operations, n.result())
	return nil
}

// remember adds a node to the report that ended in an earlier process, and its results to those of the run.
func (n *nodeRun) remember() error {
	n.run.report.Operations = append(n.run.report.Operations, n.result())
	for _, s := range n.state.done.Operation.Results {
		whole := s.Value
		if s.InFile {
			var err error
			if whole, err = n.run.runner.files.load(*s.File); err != nil {
				return err
			}
		}
		n.run.results.add(s, whole)
	}
	return nil
}

// result returns the result or the progress of the node.
func (n *nodeRun) result() operationRun {
	o := operationRun{OperationRun: v1.OperationRun{
		ID: n.id, Operation: n.op.Name, Phase: v1.OperationRunning,
		Attempts: int32(n.state.attempts), StartTime: microTime(n.state.start), Actions: slices.Clone(n.state.actions),
	}}
	if n.state.plan != nil {
		o.Plan, o.Outlived = NewPlan(n.op.Name, n.state.boot, n.state.plan.Actions()), n.state.outlived(n.run.runner.Boot)
		for i, a := range n.state.actions { // an action that was begun may have changed something
			o.Begun = o.Begun || n.state.begun[i] || n.state.changed[i] || a.Phase == v1.ActionDone
		}
	}
	d := n.state.done
	if d == nil {
		if n.state.plan != nil {
			o.Findings = sanitizeFindings(n.state.plan.Findings())
		}
		return o
	}
	end := d.Operation
	o.Phase, o.CompletionTime, o.Reason, o.Message, o.NoFault = end.Outcome, microTime(d.Time), d.Reason, d.Message, end.NoFault
	if o.Phase == v1.OperationNotApplicable {
		o.Reason = v1.ReasonNotApplicable
	}
	// A recoverer gives the reason for each fault that it leaves alone.
	if o.Phase == v1.OperationSucceeded && n.state.plan != nil && len(n.state.actions) == 0 && len(end.Gone) == 0 && d.Message != "" {
		o.Reason = v1.ReasonNothingRepaired
	}
	o.Findings, o.Gone = end.Findings, end.Gone
	if o.Plan != nil {
		o.Plan.Held, o.Plan.HeldActions = end.Held, end.HeldActions
	}
	for _, r := range end.Results {
		if r.File != nil {
			a := v1.Artifact(*r.File)
			a.Path = path.Join(n.run.runner.files.base, a.Path)
			o.Artifacts = append(o.Artifacts, a)
		}
	}
	return o
}

// sleep waits, or returns the cause for which ctx was cancelled.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// beginAttempt writes down that an attempt begins. The record is how the operation has ended if there may be no other attempt.
func (n *nodeRun) beginAttempt(ctx context.Context) (end record, err error) {
	if times := n.state.attempts - n.state.failures; times >= maxInterrupted {
		return n.failure(reasonInterrupted, fmt.Sprintf("the process ended %d times while the operation ran", times)), nil
	}
	if !n.isToPlan() && !n.run.job.PlanOnly { // a plan that still waits for its approval begins no attempt
		if err := n.confirmPlan(ctx); err != nil {
			return record{}, err
		}
	}
	begin := record{Kind: kindAttempt, Node: n.id, Time: now()}
	write := n.run.journal.write
	if n.op.HasSideEffects {
		write = n.run.journal.announce
	}
	if err := write(begin); err != nil {
		return record{}, err
	}
	n.state.apply(begin)
	return record{}, nil
}

// look makes one attempt of a collector or a diagnoser, within the time limit of the operation.
func (n *nodeRun) look(ctx context.Context) (processor.Result, error) {
	if err := n.op.Step.CheckParameters(n.run.job.Request.Values); err != nil {
		return processor.Result{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, n.op.Timeout, timeoutCause(n.op))
	defer cancel()
	r := n.run.request()
	return repair.Call(ctx, n.run.runner.calls, r, func(ctx context.Context) (processor.Result, error) { return n.op.Step.Processor.Run(ctx, r) })
}

// endAttempt makes the record of an attempt: how the operation ended, or that it is to be tried again after a wait. An error ends the run.
func (n *nodeRun) endAttempt(ctx context.Context, result processor.Result, err error) (record, error) {
	if err == nil && n.endsWithPlan() {
		done := operationRecord{Outcome: v1.OperationSucceeded, Planned: true, Findings: sanitizeFindings(n.state.plan.Findings())}
		held, count := n.engine().Held(ctx, n.run.request(), n.state.plan)
		for _, why := range held {
			done.Held = append(done.Held, sanitize(why))
		}
		done.HeldActions = int32(count)
		return n.end(done, ""), nil
	}
	if err == nil {
		var done record
		if done, err = n.success(ctx, result); err == nil {
			return done, nil
		}
	}
	if _, ends := errors.AsType[*fatal](err); ends {
		return record{}, err
	}
	if cause := interruption(ctx); cause != nil {
		return record{}, cause
	}
	return n.failedAttempt(ctx, result.Findings, err), nil
}

// success is the record of an operation that has given an answer.
func (n *nodeRun) success(ctx context.Context, result processor.Result) (record, error) {
	if err := processor.UnjudgedError(result); err != nil {
		return record{}, err
	}
	findings, left := fitFindings(sanitizeFindings(result.Findings), maxFindingsBytes)
	message := result.Message
	if left > 0 {
		message = strings.TrimPrefix(message+fmt.Sprintf("; %d of %d faults are left out, because there is no room for all", left, len(result.Findings)), "; ")
	}
	done := n.end(operationRecord{Outcome: v1.OperationSucceeded, Findings: findings, Gone: result.Gone, NoFault: result.NoFault}, message)
	if result.NotApplicable != "" {
		done.Operation.Outcome, done.Message = v1.OperationNotApplicable, sanitize(result.NotApplicable)
		return done, nil
	}
	var err error
	done.Operation.Results, err = n.keep(ctx, result)
	return done, err
}

// fitFindings returns as many findings as have room in JSON, and the number of the others. If not all have room, those of all namespaces
// take turns.
func fitFindings(findings []fault.Finding, room int) (kept []fault.Finding, left int) {
	if size(findings) <= room {
		return findings, 0
	}
	for i, f := range share.InTurns(findings, func(f fault.Finding) share.Owner { return share.Owner{Namespace: f.Pod.Namespace, Pod: f.Pod.Name} }) {
		if room -= size(f) + 1; room < 0 {
			return kept, len(findings) - i
		}
		kept = append(kept, f)
	}
	return kept, 0
}

// sanitizeFindings are findings whose texts are fit for people.
func sanitizeFindings(findings []fault.Finding) []fault.Finding {
	findings = slices.Clone(findings)
	for i := range findings {
		f := &findings[i]
		f.Holder = sanitize(f.Holder)
		f.Evidence = slices.Clone(f.Evidence)
		for j := range f.Evidence {
			f.Evidence[j] = sanitize(f.Evidence[j])
		}
	}
	return findings
}

// end is the record of an operation that has ended.
func (n *nodeRun) end(o operationRecord, message string) record {
	return record{Kind: kindDone, Node: n.id, Time: now(), Operation: o, Message: sanitize(message)}
}

func (n *nodeRun) failure(reason, message string) record {
	r := n.end(operationRecord{Outcome: v1.OperationFailed}, message)
	r.Reason = reason
	return r
}

// failedAttempt is the record of an attempt that has failed: the operation has, or there is to be another attempt. The
// findings are those that it has proven all the same: without any, those of the plan are still there.
func (n *nodeRun) failedAttempt(ctx context.Context, findings []fault.Finding, err error) record {
	r := n.failure(reasonOf(ctx, err), err.Error())
	if len(findings) == 0 && n.state.plan != nil {
		findings = n.state.plan.Findings()
	}
	r.Operation.Findings, _ = fitFindings(sanitizeFindings(findings), maxFindingsBytes)
	if p, ok := errors.AsType[*repair.PanicError](err); ok {
		r.Stack = printable.Clip(string(p.Stack), maxStackBytes)
	}
	if !slices.Contains(retriedReasons, r.Reason) || n.state.failures+1 >= maxAttempts {
		return r
	}
	r.wait = min(firstBackoff<<n.state.failures, maxBackoff)
	r.wait += time.Duration((rand.Float64() - 0.5) * 0.4 * float64(r.wait)) // give or take a fifth
	if waiting, ok := errors.AsType[*processor.WaitingError](err); ok {
		r.wait = max(waiting.After, 0)
	}
	if time.Now().Add(r.wait).After(n.run.job.Deadline) {
		r.Message = sanitize(err.Error() + "; no time is left to try again")
		return r
	}
	r.Kind, r.Operation.Outcome, r.Operation.Findings = kindRetry, "", nil
	return r
}

// retriedReasons are those of failures that are worth another attempt.
var retriedReasons = []string{ReasonFailed, reasonTimedOut, reasonNotJudged}

func reasonOf(ctx context.Context, err error) string {
	_, panicked := errors.AsType[*repair.PanicError](err)
	switch {
	case panicked:
		return reasonPanicked
	case errors.Is(err, repair.ErrAbandoned):
		return reasonAbandoned
	case errors.Is(context.Cause(ctx), errDeadline):
		return reasonDeadlineExceeded
	case processor.IsHeld(err):
		return reasonHeld
	case processor.IsUnjudged(err):
		return reasonNotJudged
	case processor.IsStalled(err):
		return reasonStalled
	case errors.Is(err, repair.ErrTimeout):
		return reasonTimedOut
	}
	return ReasonFailed
}

// timeoutCause is the cause of a context whose time is limited by the operation. It names the limit as the user knows
// it.
func timeoutCause(op operation) error {
	return fmt.Errorf("%w (timeoutSeconds: %g)", repair.ErrTimeout, op.Timeout.Seconds())
}
