// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipelinetest

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// operationTimeout is long enough for a test that keeps an action under way.
const operationTimeout int32 = 3600

// NewRunner returns a Runner of this node whose every OperationSet is the one recoverer. It is closed when the test ends.
func NewRunner(t *testing.T, o pipeline.Options, r repair.Family) *pipeline.Runner {
	t.Helper()
	registry, err := pipeline.NewRegistry(pipeline.Step{Family: r})
	if err != nil {
		t.Fatal(err)
	}
	o.Registry, o.Store = registry, store{r.Name()}
	runner, err := pipeline.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := runner.Close(); err != nil {
			t.Error(err)
		}
	})
	return runner
}

// Diagnosis returns a Diagnosis with a UID that asks for the same as the request.
func Diagnosis(uid types.UID, r processor.Request) *v1.Diagnosis {
	d := &v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: r.Diagnosis.Namespace, Name: r.Diagnosis.Name, UID: uid}}
	d.Spec.NodeName, d.Spec.Parameters = r.Node, r.Values
	if r.Pod.Name != "" {
		d.Spec.PodReference = &v1.PodReference{Namespace: r.Pod.Namespace, Name: r.Pod.Name, Container: r.Pod.Container}
	}
	return d
}

// store has the OperationSet and the Operation of the built-in processor of this name, and stores nothing.
type store struct{ processor string }

func (s store) OperationSet(_ context.Context, name string) (*v1.OperationSet, error) {
	set := &v1.OperationSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	set.Spec.AdjacencyList = []v1.Node{{To: []int32{1}}, {ID: 1, Operation: "operation"}}
	set.Status.Ready = true
	return set, nil
}

func (s store) Operation(_ context.Context, name string) (*v1.Operation, error) {
	o := &v1.Operation{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.Processor.Path, o.Spec.Processor.TimeoutSeconds = new(v1.BuiltInPathPrefix+s.processor), new(operationTimeout)
	return o, nil
}

func (store) Save(context.Context, *v1.Diagnosis) error { return nil }
