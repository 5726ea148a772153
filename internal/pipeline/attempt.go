// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
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

// announce puts a record on the disk.
func (x *run) announce(r record) error {
	if err := x.journal.announce(r); err != nil {
		return &fatal{err}
	}
	return nil
}

// try makes one attempt. The record says how the operation ended, or that it is to be tried again after a wait.
func (x *run) try(ctx context.Context, id int32, s *state) (record, error) {
	if n := s.interrupted(); n >= maxInterrupted {
		return failure(id, ReasonInterrupted, fmt.Sprintf("the process ended %d times while the operation ran", n)), nil
	}
	if s.plan != nil && !x.job.PlanOnly { // a plan that still waits for its approval begins no attempt
		if err := x.agree(ctx, id, s); err != nil {
			return record{}, errors.Unwrap(err)
		}
	}
	begin := record{Kind: kindAttempt, Node: id, Time: now()}
	write := x.journal.write
	if x.job.Operations[id].Acts {
		write = x.journal.announce
	}
	if err := write(begin); err != nil {
		return record{}, err
	}
	s.apply(begin)
	result, err := x.attempt(ctx, id, s)
	if err == nil {
		var done record
		if done, err = x.end(ctx, id, result); err == nil {
			return done, nil
		}
	}
	if errors.Is(err, errPlanned) {
		return record{Kind: kindDone, Node: id, Time: now(), Outcome: v1.OperationSucceeded, Planned: true, Findings: toldFindings(s.plan.Findings)}, nil
	}
	if f := (*fatal)(nil); errors.As(err, &f) {
		return record{}, f.err
	}
	if cause := stopped(ctx); cause != nil {
		return record{}, cause
	}
	return x.fail(ctx, attempted{id, s, result.Findings, err}), nil
}

// attempt runs the step once, within its time limit.
func (x *run) attempt(ctx context.Context, id int32, s *state) (processor.Result, error) {
	op := x.job.Operations[id]
	if s.plan == nil { // a repair that was decided on is resumed
		if err := op.Step.CheckParameters(x.job.Request.Values); err != nil {
			return processor.Result{}, err
		}
	}
	if op.Step.Recoverer != nil {
		return x.repair(ctx, id, s)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, op.Timeout, limited(op))
	defer cancel()
	r := x.request()
	return guard(ctx, x.Runner, func(ctx context.Context) (processor.Result, error) {
		return op.Step.Processor.Run(ctx, r)
	})
}

// end is the record of an operation that has given an answer.
func (x *run) end(ctx context.Context, id int32, result processor.Result) (record, error) {
	done := record{
		Kind: kindDone, Node: id, Time: now(), Outcome: v1.OperationSucceeded, Findings: toldFindings(result.Findings),
		Gone: result.Gone, NoFault: result.NoFault, Message: told(result.Message),
	}
	if result.NotApplicable != "" {
		done.Outcome, done.Message = v1.OperationNotApplicable, told(result.NotApplicable)
		return done, nil
	}
	if err := checkFindings(done.Findings); err != nil {
		return done, processor.Stalled(err)
	}
	var err error
	done.Results, err = x.keep(ctx, id, result)
	return done, err
}

func checkFindings(findings []fault.Finding) error {
	text, err := json.Marshal(findings)
	if err == nil && len(text) > maxFindingsBytes {
		err = fmt.Errorf("keeping findings: %d bytes with %d findings, at most %d", len(text), len(findings), maxFindingsBytes)
	}
	return err
}

// toldFindings are findings whose texts are fit for people.
func toldFindings(findings []fault.Finding) []fault.Finding {
	findings = slices.Clone(findings)
	for i := range findings {
		f := &findings[i]
		f.Holder = told(f.Holder)
		f.Evidence = slices.Clone(f.Evidence)
		for j := range f.Evidence {
			f.Evidence[j] = told(f.Evidence[j])
		}
	}
	return findings
}

func failure(id int32, reason, message string) record {
	return record{Kind: kindDone, Node: id, Time: now(), Outcome: v1.OperationFailed, Reason: reason, Message: told(message)}
}

// attempted is an attempt that has failed.
type attempted struct {
	id int32
	s  *state
	// findings are what it has proven all the same.
	findings []fault.Finding
	err      error
}

// fail is the record of an attempt that has failed: the operation has, or there is to be another attempt.
func (x *run) fail(ctx context.Context, a attempted) record {
	s, err := a.s, a.err
	r := failure(a.id, reasonOf(ctx, err), err.Error())
	if checkFindings(a.findings) == nil {
		r.Findings = toldFindings(a.findings)
	}
	if p := (*panicError)(nil); errors.As(err, &p) {
		r.Stack = clip(string(p.stack), maxStackBytes)
	}
	if r.Reason != ReasonFailed && r.Reason != ReasonTimedOut || s.failures+1 >= maxAttempts {
		return r
	}
	r.wait = delay(s.failures, err)
	if time.Now().Add(r.wait).After(x.job.Deadline) {
		r.Message = told(err.Error() + "; no time is left to try again")
		return r
	}
	r.Kind, r.Outcome, r.Findings = kindRetry, "", nil
	return r
}

func reasonOf(ctx context.Context, err error) string {
	var panicked *panicError
	var late *timeoutError
	switch {
	case errors.As(err, &panicked):
		return ReasonPanicked
	case errors.Is(err, errAbandoned):
		return ReasonAbandoned
	case errors.Is(context.Cause(ctx), errDeadline):
		return ReasonDeadlineExceeded
	case processor.IsStalled(err):
		return ReasonStalled
	case errors.As(err, &late):
		return ReasonTimedOut
	}
	return ReasonFailed
}

// delay before another attempt: what the processor asks for, else a second that doubles, give or take a fifth.
func delay(failures int, err error) time.Duration {
	var waiting *processor.WaitingError
	if errors.As(err, &waiting) {
		return max(waiting.After, 0)
	}
	d := min(firstBackoff<<failures, maxBackoff)
	return d + time.Duration((rand.Float64()-0.5)*0.4*float64(d))
}
