// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package operationset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
)

var request = reconcile.Request{NamespacedName: types.NamespacedName{Name: "set"}}

func setOf(t *testing.T, list string) *v1.OperationSet {
	t.Helper()
	set := &v1.OperationSet{}
	set.Name, set.Generation = "set", 2
	if err := yaml.UnmarshalStrict([]byte(list), &set.Spec.AdjacencyList); err != nil {
		t.Fatalf("reading %s: %v", list, err)
	}
	return set
}

// operation is one that has been checked with the given result; an empty reason: not yet.
func operation(name, reason string) *v1.Operation {
	op := &v1.Operation{}
	op.Name, op.Generation = name, 1
	if reason == "" {
		return op
	}
	status := metav1.ConditionFalse
	if reason == v1.ReasonReady {
		status = metav1.ConditionTrue
	}
	op.Status.ObservedGeneration = 1
	op.Status.Conditions = []metav1.Condition{{Type: v1.ConditionReady, Status: status, Reason: reason, Message: "because"}}
	return op
}

func newClient(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) client.Client {
	t.Helper()
	return kubeclienttest.Builder(t).WithObjects(objects...).WithInterceptorFuncs(funcs).
		WithStatusSubresource(&v1.OperationSet{}, &v1.Operation{}).
		WithIndex(&v1.OperationSet{}, operationIndex, operationsOf).Build()
}

func judged(t *testing.T, set *v1.OperationSet, operations ...client.Object) v1.OperationSetStatus {
	t.Helper()
	r := &Reconciler{Client: newClient(t, interceptor.Funcs{}, append(operations, set)...)}
	result, err := r.Reconcile(t.Context(), request)
	if err != nil || result.RequeueAfter != 0 {
		t.Fatalf("result = %v, error = %v", result, err)
	}
	var got v1.OperationSet
	if err := r.Client.Get(t.Context(), request.NamespacedName, &got); err != nil {
		t.Fatal(err)
	}
	return got.Status
}

func TestReady(t *testing.T) {
	t.Parallel()
	status := judged(t, setOf(t, "[{to: [1, 2]}, {operation: a, to: [3]}, {operation: b, to: [3]}, {operation: a}]"),
		operation("a", v1.ReasonReady), operation("b", v1.ReasonReady))
	if !status.Ready || status.PathCount != 2 || status.ObservedGeneration != 2 || len(status.AdjacencyListHash) < 16 {
		t.Errorf("status = %+v", status)
	}
	want := []v1.Path{
		{{ID: 1, Operation: "a", To: []int32{3}}, {ID: 3, Operation: "a"}},
		{{ID: 2, Operation: "b", To: []int32{3}}, {ID: 3, Operation: "a"}},
	}
	if diff := cmp.Diff(want, status.Paths); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}

// TestNotReady has one graph for each way in which a problem of it is written down: TestBadInput of internal/graph has them all.
func TestNotReady(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		list, reason string
		message      []string
	}{
		"empty":               {"[]", v1.ReasonInvalidGraph, []string{"adjacencyList: 0:"}},
		"cycle":               {"[{id: 0, to: [1]}, {id: 1, to: [2], operation: a}, {id: 2, to: [1], operation: a}]", v1.ReasonInvalidGraph, []string{"adjacencyList[1].to", "1 -> 2 -> 1"}},
		"id twice":            {"[{id: 0, to: [1]}, {id: 1, operation: a}, {id: 1, operation: a}]", v1.ReasonInvalidGraph, []string{"adjacencyList[2].id: 1:"}},
		"several":             {"[{id: 0, to: [5, 6]}, {id: 1, operation: a}]", v1.ReasonInvalidGraph, []string{"to[0]: 5:", "; ", "to[1]: 6:"}},
		"unknown operation":   {"[{to: [1]}, {operation: a, to: [2]}, {operation: nope}]", v1.ReasonOperationNotFound, []string{`adjacencyList[2].operation: "nope"`}},
		"unready operation":   {"[{to: [1]}, {operation: broken}]", v1.ReasonOperationNotReady, []string{`adjacencyList[1].operation: "broken"`, "because"}},
		"unchecked operation": {"[{to: [1]}, {operation: new}]", v1.ReasonOperationNotReady, []string{`"new"`, "not been checked"}},
		"unknown comes first": {"[{to: [1]}, {operation: broken, to: [2]}, {operation: nope}]", v1.ReasonOperationNotFound, []string{`"nope"`, `"broken"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status := judged(t, setOf(t, tc.list),
				operation("a", v1.ReasonReady), operation("broken", v1.ReasonBuiltInUnknown), operation("new", ""))
			ready := meta.FindStatusCondition(status.Conditions, v1.ConditionReady)
			if status.Ready || ready.Status != metav1.ConditionFalse || ready.Reason != tc.reason {
				t.Fatalf("status = %+v", status)
			}
			for _, part := range tc.message {
				if !strings.Contains(ready.Message, part) {
					t.Errorf("message %q does not contain %q", ready.Message, part)
				}
			}
			if strings.Contains(ready.Message, "\n") || len(ready.Message) > 32768 {
				t.Errorf("message is not one short line: %q", ready.Message)
			}
		})
	}
}

// An edited Operation whose new generation has not been checked yet is not ready, whatever its condition says.
func TestOldVerdictDoesNotCount(t *testing.T) {
	t.Parallel()
	op := operation("a", v1.ReasonReady)
	op.Generation = 2
	if status := judged(t, setOf(t, "[{to: [1]}, {operation: a}]"), op); status.Ready {
		t.Errorf("status = %+v", status)
	}
}

// ladder has two nodes on each rung: the number of paths doubles with every rung.
func ladder(rungs int, operation string) []v1.Node {
	list := []v1.Node{{ID: 0, To: []int32{1, 2}}}
	for i := range int32(rungs) {
		next := []int32{2*i + 3, 2*i + 4}
		if int(i) == rungs-1 {
			next = nil
		}
		list = append(list, v1.Node{ID: 2*i + 1, To: next, Operation: operation}, v1.Node{ID: 2*i + 2, To: next, Operation: operation})
	}
	return list
}

// The largest graphs end in a status that an API server takes, however many paths they have.
func TestStatusIsBounded(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("o", 253)
	chain := []v1.Node{{To: []int32{1}}}
	for i := range int32(999) {
		chain = append(chain, v1.Node{ID: i + 1, To: []int32{i + 2}, Operation: name})
	}
	chain[999].To = nil
	big := make([]v1.Node, 10000)
	for name, tc := range map[string]struct {
		list  []v1.Node
		ready bool
		count int32
		paths int
	}{
		"4096 paths":         {ladder(12, name), true, 4096, 57},
		"beyond all numbers": {ladder(499, name), true, math.MaxInt32, 1},
		"a chain of 999":     {chain, true, 1, 0},
		"10000 nodes":        {big, false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := setOf(t, "[]")
			set.Spec.AdjacencyList = tc.list
			status := judged(t, set, operation(strings.Repeat("o", 253), v1.ReasonReady))
			if status.Ready != tc.ready || status.PathCount != tc.count || len(status.Paths) < tc.paths || len(status.Paths) > v1.MaxListedPaths {
				t.Errorf("ready %t, %d paths, %d listed; want %t, %d, %d", status.Ready, status.PathCount, len(status.Paths), tc.ready, tc.count, tc.paths)
			}
			text, err := json.Marshal(status)
			if err != nil || len(text) > v1.MaxPathsBytes+4096 {
				t.Errorf("status has %d bytes, error %v", len(text), err)
			}
		})
	}
}

func TestFewProblems(t *testing.T) {
	t.Parallel()
	var list []string
	for i := range 500 {
		list = append(list, fmt.Sprintf("{id: %d, operation: missing-%d, to: [%d]}", i+1, i, i+2))
	}
	text := "[{id: 0, to: [1]}, " + strings.Join(list, ", ") + ", {id: 501, operation: last}]"
	ready := meta.FindStatusCondition(judged(t, setOf(t, text)).Conditions, v1.ConditionReady)
	if !strings.HasSuffix(ready.Message, "and 491 more") || len(ready.Message) > maxProblems*maxProblemBytes {
		t.Errorf("message = %q", ready.Message)
	}
}

func TestReconcileMeetsErrors(t *testing.T) {
	t.Parallel()
	other := errors.New("connection refused")
	for name, tc := range map[string]struct {
		get, patch error
	}{
		"status not stored":     {nil, other},
		"operation not legible": {other, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if _, ok := o.(*v1.Operation); ok && tc.get != nil {
						return tc.get
					}
					return c.Get(ctx, key, o, opts...)
				},
				SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
					return tc.patch
				},
			}, setOf(t, "[{to: [1]}, {operation: a}]"))
			if _, err := (&Reconciler{Client: c}).Reconcile(t.Context(), request); !errors.Is(err, other) {
				t.Errorf("error = %v", err)
			}
		})
	}
}

func TestOperationsOf(t *testing.T) {
	t.Parallel()
	got := operationsOf(setOf(t, "[{}, {operation: b}, {operation: a}, {operation: b}]"))
	if diff := cmp.Diff([]string{"a", "b"}, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestReadinessChanged(t *testing.T) {
	t.Parallel()
	edited := operation("a", v1.ReasonReady)
	edited.Generation = 2
	for name, tc := range map[string]struct {
		was, is *v1.Operation
		want    bool
	}{
		"checked":        {operation("a", ""), operation("a", v1.ReasonReady), true},
		"broken":         {operation("a", v1.ReasonReady), operation("a", v1.ReasonInvalidSpec), true},
		"edited":         {operation("a", v1.ReasonReady), edited, true},
		"nothing of use": {operation("a", v1.ReasonReady), operation("a", v1.ReasonReady), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := readinessChanged().Update(event.UpdateEvent{ObjectOld: tc.was, ObjectNew: tc.is}); got != tc.want {
				t.Errorf("lets through: %t, want %t", got, tc.want)
			}
		})
	}
}
