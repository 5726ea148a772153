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
)

// run is one run of a job.
type run struct {
	*Runner
	job     job
	journal *journal
	states  map[int32]*state
	results *results
	failed  map[int32]bool
	report  report
}

// paths tries paths until one succeeds or none is left.
func (x *run) paths(ctx context.Context) error {
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
	x.report.Results = x.results.shown
	if x.journal.over {
		return nil
	}
	return x.journal.announce(record{Kind: kindEnd})
}

// path runs the nodes of the path that have not run, up to the first that does not succeed.
func (x *run) path(ctx context.Context) error {
	for i, id := range x.report.Path {
		x.report.Reached = i
		n := x.node(id)
		if n.done == nil && ctx.Err() != nil {
			x.report.DeadlineExceeded = errors.Is(context.Cause(ctx), errDeadline)
			return interruption(ctx)
		}
		if err := n.finish(ctx); err != nil {
			return err
		}
		if n.done.Outcome != v1.OperationSucceeded {
			x.failed[id] = true
			x.report.DeadlineExceeded = n.done.Reason == ReasonDeadlineExceeded
			return nil
		}
		if n.done.Planned {
			x.report.Planned = true
			return nil
		}
	}
	x.report.Succeeded = true
	return nil
}

// interruption is the cause for which the run is to end here and go on later: none if just some time is up.
func interruption(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, errDeadline) || errors.Is(cause, errTimeout) {
		return nil
	}
	return cause
}

// node returns the run of a node as far as it is.
func (x *run) node(id int32) *nodeRun {
	if x.states[id] == nil {
		x.states[id] = &state{}
	}
	return &nodeRun{run: x, id: id, op: x.job.Operations[id], state: x.states[id]}
}

// remember takes results from the journal.
func (x *run) remember(all []stored) error {
	for _, s := range all {
		whole := s.Value
		if s.InFile {
			var err error
			if whole, err = x.files.load(*s.File); err != nil {
				return err
			}
		}
		x.results.add(s, whole)
	}
	return nil
}

// request is what the next operation is asked.
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
