// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package executor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/processor"
)

// Known tells whether there is a built-in processor of that name.
func (e *Executor) Known(name string) bool {
	_, ok := e.Registry.Lookup(name)
	return ok
}

// Call runs one built-in processor for a caller outside any Diagnosis, with the guard and the limits that an operation
// has, until ctx is done. A repair is journalled like any other, but a call that is cut short is not gone on with.
func (e *Executor) Call(ctx context.Context, name string, r processor.Request) (processor.Result, error) {
	step, ok := e.Registry.Lookup(name)
	if !ok {
		return processor.Result{}, fmt.Errorf("calling %q: there is no such processor", name)
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(e.DefaultDeadline)
	}
	g, err := graph.New([]graph.Node{{ID: 0, To: []int32{1}}, {ID: 1, Operation: name}})
	if err != nil {
		return processor.Result{}, err
	}
	uid := "call-" + rand.Text()
	report, err := e.runner.Run(ctx, pipeline.Job{
		UID: uid, Request: r, Graph: g, Deadline: deadline,
		Operations: map[int32]pipeline.Operation{1: {Name: name, Step: step, Timeout: time.Until(deadline)}},
	})
	if err = errors.Join(err, e.runner.Drop(uid)); err != nil {
		return processor.Result{}, err
	}
	if len(report.Operations) == 0 {
		return processor.Result{}, fmt.Errorf("calling %q: no time is left", name)
	}
	switch o := report.Operations[0]; o.Outcome {
	case pipeline.Succeeded:
		return processor.Result{Values: report.Whole, Findings: o.Findings}, nil
	case pipeline.NotApplicable:
		return processor.Result{NotApplicable: o.Message}, nil
	default:
		return processor.Result{}, fmt.Errorf("calling %q: %s: %s", name, o.Reason, o.Message)
	}
}
