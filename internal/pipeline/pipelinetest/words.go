// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package pipelinetest runs recoverers through a pipeline, for their tests.
package pipelinetest

import (
	"context"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
)

// InOtherWords makes sure that a repair succeeds whatever its sentences say, and that the report says of every action
// whether this run did it. prepare makes a node with something to repair.
func InOtherWords(t *testing.T, prepare func(t *testing.T) (processor.Recoverer, processor.Request)) {
	t.Helper()
	for name, already := range map[string]bool{"nothing is done": false, "all is done already": true} {
		t.Run(name, func(t *testing.T) {
			r, request := prepare(t)
			if already {
				r = second{r}
			}
			o := run(t, processortest.Reworded{Recoverer: r}, request)
			if o.Outcome != pipeline.Succeeded || len(o.Actions) == 0 {
				t.Fatalf("it ended as %s with %d actions: %s", o.Outcome, len(o.Actions), o.Message)
			}
			for _, a := range o.Actions {
				if a.Phase != pipeline.Done || a.Already != (already && a.Kind != fault.RemoveContainerRecord) {
					t.Errorf("%s is %s, already %v, want Done and %v", a.Kind, a.Phase, a.Already, already)
				}
			}
		})
	}
}

// second is a recoverer that finds each action done right before by another recoverer.
type second struct{ processor.Recoverer }

func (s second) Apply(ctx context.Context, r processor.Request, a fault.Action) (fault.Applied, error) {
	if done, err := s.Recoverer.Apply(ctx, r, a); err != nil {
		return done, err
	}
	return s.Recoverer.Apply(ctx, r, a)
}

// run runs a recoverer as the one operation of a job.
func run(t *testing.T, r processor.Recoverer, request processor.Request) pipeline.OperationRun {
	t.Helper()
	runner, err := pipeline.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := runner.Close(); err != nil {
			t.Error(err)
		}
	}()
	g, err := graph.New([]graph.Node{{ID: 0, To: []int32{1}}, {ID: 1, Operation: r.Name()}})
	if err != nil {
		t.Fatal(err)
	}
	report, err := runner.Run(t.Context(), pipeline.Job{
		UID: "uid", Request: request, Graph: g, Deadline: time.Now().Add(time.Hour),
		Operations: map[int32]pipeline.Operation{1: {Name: r.Name(), Step: processor.Step{Recoverer: r}, Timeout: time.Minute}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return report.Operations[0]
}
