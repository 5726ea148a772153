// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package pipelinetest runs recoverers through a pipeline, for their tests.
package pipelinetest

import (
	"context"
	"testing"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
)

// InOtherWords makes sure that a repair succeeds whatever its sentences say, and that the status says of every action
// whether this run did it. prepare makes a node with something to repair.
func InOtherWords(t *testing.T, prepare func(t *testing.T) (repair.Family, processor.Request)) {
	t.Helper()
	for name, already := range map[string]bool{"nothing is done": false, "all is done already": true} {
		t.Run(name, func(t *testing.T) {
			r, request := prepare(t)
			evictor, _ := r.(repair.Evictor)
			if already {
				r = second{r}
			}
			o := run(t, processortest.Reworded{Family: r}, evictor, request)
			if o.Phase != v1.OperationSucceeded || len(o.Actions) == 0 {
				t.Fatalf("it ended as %s with %d actions: %s", o.Phase, len(o.Actions), o.Message)
			}
			for _, a := range o.Actions {
				if a.Phase != v1.ActionDone || a.Already != (already && !ofEngine[a.Kind]) {
					t.Errorf("%s is %s, already %v, want Done and %v", a.Kind, a.Phase, a.Already, already)
				}
			}
		})
	}
}

// ofEngine are the kinds of actions that the engine does. The recoverer, which judges them only, finds none done already.
var ofEngine = map[string]bool{string(fault.RemoveContainerRecord): true, string(fault.Evict): true}

// second is a recoverer that finds each action done right before by another recoverer.
type second struct{ repair.Family }

// Open implements repair.Family.
func (s second) Open() repair.Apply {
	apply := s.Family.Open()
	return func(ctx context.Context, r processor.Request, a fault.Action) (fault.Applied, error) {
		if done, err := apply(ctx, r, a); err != nil {
			return done, err
		}
		return apply(ctx, r, a)
	}
}

// run runs a recoverer as the one operation of a Diagnosis.
func run(t *testing.T, r repair.Family, e repair.Evictor, request processor.Request) v1.OperationRun {
	t.Helper()
	if request.Node == "" {
		request.Node = "node"
	}
	runner := NewRunner(t, pipeline.Options{Node: request.Node, DataRoot: t.TempDir()}, r)
	runner.Registry.Evictor = e
	d, err := runner.Run(t.Context(), Diagnosis("uid", request))
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Status.Operations) != 1 {
		t.Fatalf("%d operations: %s", len(d.Status.Operations), d.Status.Summary)
	}
	return d.Status.Operations[0]
}
