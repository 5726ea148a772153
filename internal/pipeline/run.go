// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"maps"
	"slices"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// run is one run of a job.
type run struct {
	runner  *Runner
	job     job
	journal *journal
	states  map[int32]*state
	results *results
	report  report
}

// paths brings the run to its end: it tries paths until one succeeds or none is left, and closes the journal. It runs the nodes of a path
// that have not run, up to the first that does not succeed. A nil error means that the report is final, and it is the same whenever the job
// is begun again. When ctx is cancelled, the run stops with the cause; the journal is left so that a later run goes on.
func (x *run) paths(ctx context.Context) (report, error) {
	defer x.runner.running.Delete(x.job.Request.Diagnosis.UID)
	defer x.journal.close()
	ctx, cancel := context.WithDeadlineCause(ctx, x.job.Deadline, errDeadline)
	defer cancel()
	r, failedNodes := &x.report, map[int32]bool{}
	for !r.Succeeded && !r.Planned && !r.DeadlineExceeded {
		next, ok := x.job.Graph.Next(func(id int32) bool { return failedNodes[id] })
		if !ok {
			break
		}
		r.Path, r.Reached = next, 0
		failed := false
		for i := 0; i < len(next) && !failed && !r.Planned; i++ {
			r.Reached = i
			id := next[i]
			if x.states[id] == nil {
				x.states[id] = &state{}
			}
			n := &nodeRun{run: x, id: id, op: x.job.Operations[id], state: x.states[id]}
			if n.state.done == nil && ctx.Err() != nil {
				if err := interruption(ctx); err != nil {
					return report{}, err
				}
				failed, r.DeadlineExceeded = true, errors.Is(context.Cause(ctx), errDeadline)
				break
			}
			if err := n.finish(ctx); err != nil {
				return report{}, err
			}
			if failed = n.state.done.Operation.Outcome != v1.OperationSucceeded; failed {
				failedNodes[n.id] = true
				r.DeadlineExceeded = n.state.done.Reason == reasonDeadlineExceeded
			}
			r.Planned = !failed && n.state.done.Operation.Planned
		}
		if r.Succeeded = !failed && !r.Planned; failed {
			r.Failed = append(r.Failed, next)
		}
	}
	r.Results = x.results.shown
	if !x.journal.over {
		if err := x.journal.announce(record{Kind: kindEnd}); err != nil {
			return report{}, err
		}
	}
	return *r, nil
}

// interruption is the cause for which the run is to end here and go on later: none if just some time is up.
func interruption(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, errDeadline) || errors.Is(cause, repair.ErrTimeout) {
		return nil
	}
	return cause
}

// request is that of the next operation.
func (x *run) request() processor.Request {
	r, values := x.job.Request, map[string]string{}
	maps.Copy(values, r.Values)
	maps.Copy(values, x.results.whole)
	r.Values = values
	return r
}

// partialReport is the report with the node that runs, or has just ended.
func (x *run) partialReport(n *nodeRun) report {
	r := x.report
	r.Operations = append(slices.Clone(r.Operations), n.result())
	r.Results = maps.Clone(x.results.shown)
	return r
}
