// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/processor"
)

// run is one call of Run.
type run struct {
	*Runner
	job     job
	journal *journal
	states  map[int32]*state
	ledger  *ledger
	failed  map[int32]bool
	report  report
}

// all tries paths until one succeeds or none is left.
func (x *run) all(ctx context.Context) error {
	for !x.report.Succeeded && !x.report.Planned && !x.report.DeadlineExceeded {
		next, ok := x.job.Graph.Next(func(id int32) bool { return x.failed[id] })
		if !ok {
			break
		}
		x.report.Path, x.report.Reached = next, 0
		if err := x.path(ctx); err != nil {
			return err
		}
		if !x.report.Succeeded && !x.report.Planned {
			x.report.Failed = append(x.report.Failed, next)
		}
	}
	x.report.Values = x.ledger.shown
	if x.journal.over {
		return nil
	}
	return x.journal.announce(record{Kind: kindEnd})
}

// path runs the nodes of the path that have not run, up to the first that does not succeed.
func (x *run) path(ctx context.Context) error {
	for i, id := range x.report.Path {
		x.report.Reached = i
		s := x.states[id]
		if s == nil {
			s = &state{}
			x.states[id] = s
		}
		if s.done == nil && ctx.Err() != nil {
			x.report.DeadlineExceeded = errors.Is(context.Cause(ctx), errDeadline)
			return stopped(ctx)
		}
		if err := x.node(ctx, id, s); err != nil {
			return err
		}
		if s.done.Outcome != v1.OperationSucceeded {
			x.failed[id] = true
			x.report.DeadlineExceeded = s.done.Reason == ReasonDeadlineExceeded
			return nil
		}
		if s.done.Planned {
			x.report.Planned = true
			return nil
		}
	}
	x.report.Succeeded = true
	return nil
}

// stopped is the cause for which the run is to end here and go on later: none if just some time is up.
func stopped(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, errDeadline) || errors.Is(cause, errTimeout) {
		return nil
	}
	return cause
}

// node brings a node to its end, or remembers it, and adds it to the report the first time it is met.
func (x *run) node(ctx context.Context, id int32, s *state) error {
	if s.reported {
		return nil
	}
	s.reported = true
	if s.done != nil {
		x.report.Operations = append(x.report.Operations, x.operationRun(id, s))
		return x.remember(s.done.Results)
	}
	if err := x.operate(ctx, id, s); err != nil {
		return err
	}
	if x.job.OperationEnded != nil {
		x.job.OperationEnded(x.soFar(id, s))
	}
	x.report.Operations = append(x.report.Operations, x.operationRun(id, s))
	return nil
}

// remember takes results from the journal.
func (x *run) remember(results []stored) error {
	for _, s := range results {
		whole := s.Value
		if s.InFile {
			var err error
			if whole, err = x.files.load(*s.File); err != nil {
				return err
			}
		}
		x.ledger.add(s, whole)
	}
	return nil
}

// request is what the next operation is asked.
func (x *run) request() processor.Request {
	r := x.job.Request
	r.Values = maps.Clone(r.Values)
	if r.Values == nil {
		r.Values = map[string]string{}
	}
	maps.Copy(r.Values, x.ledger.whole)
	return r
}

// operationRun returns the result or the progress of a node.
func (x *run) operationRun(id int32, s *state) operationRun {
	o := operationRun{OperationRun: v1.OperationRun{
		ID: id, Operation: x.job.Operations[id].Name, Phase: v1.OperationRunning,
		Attempts: int32(s.attempts), StartTime: moment(s.start), Actions: slices.Clone(s.actions),
	}}
	if s.plan != nil {
		o.Plan = NewPlan(o.Operation, s.plan.Actions)
	}
	if d := s.done; d != nil {
		o.Phase, o.CompletionTime, o.Reason, o.Message, o.NoFault = d.Outcome, moment(d.Time), d.Reason, d.Message, d.NoFault
		if o.Phase == v1.OperationNotApplicable {
			o.Reason = v1.ReasonNotApplicable
		}
		o.Findings, o.Gone = d.Findings, d.Gone
		for _, r := range d.Results {
			if r.File != nil {
				a := v1.Artifact(*r.File)
				a.Path = path.Join(x.files.base, a.Path)
				o.Artifacts = append(o.Artifacts, a)
			}
		}
	}
	return o
}

// soFar is the report with the node that runs, or has just ended.
func (x *run) soFar(id int32, s *state) report {
	r := x.report
	r.Operations = append(slices.Clone(r.Operations), x.operationRun(id, s))
	r.Values = maps.Clone(x.ledger.shown)
	return r
}

// operate runs an operation until it ends, one way or the other.
func (x *run) operate(ctx context.Context, id int32, s *state) error {
	for {
		done, err := x.try(ctx, id, s)
		if err != nil {
			return err
		}
		if done.Kind == kindDone {
			s.done = &done
			return x.journal.write(done)
		}
		s.failures++
		if err := x.journal.write(done); err != nil {
			return err
		}
		if err := sleep(ctx, done.wait); err != nil {
			return fmt.Errorf("waiting for another attempt: %w", err)
		}
	}
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
