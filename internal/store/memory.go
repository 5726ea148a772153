// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package store is the embedded store: it holds the API's objects in memory for one machine without a cluster, takes
// them in as YAML manifests and gives them out as YAML. It writes no file and has no watches. The objects
// that go in and come out are copies.
package store

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/pipeline"
)

// Memory is a store in memory. Its zero value is empty and ready. It may be used from several goroutines.
type Memory struct {
	// Saved is called with every status that is stored, with the store unlocked; it may be nil.
	Saved func(d *v1.Diagnosis)

	mu         sync.Mutex
	operations map[string]*v1.Operation
	sets       map[string]*v1.OperationSet
	diagnoses  map[types.NamespacedName]*v1.Diagnosis
}

var _ pipeline.Store = (*Memory)(nil)

// Operation returns the Operation with that name, or an error that wraps pipeline.ErrNotFound.
func (m *Memory) Operation(_ context.Context, name string) (*v1.Operation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.operations[name]; o != nil {
		return o.DeepCopy(), nil
	}
	return nil, fmt.Errorf("get operation %q: %w", name, pipeline.ErrNotFound)
}

// OperationSet returns the OperationSet with that name, or an error that wraps pipeline.ErrNotFound.
func (m *Memory) OperationSet(_ context.Context, name string) (*v1.OperationSet, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sets[name]; s != nil {
		return s.DeepCopy(), nil
	}
	return nil, fmt.Errorf("get operation set %q: %w", name, pipeline.ErrNotFound)
}

// Diagnosis returns a Diagnosis, or an error that wraps pipeline.ErrGone.
func (m *Memory) Diagnosis(namespace, name string) (*v1.Diagnosis, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.diagnoses[types.NamespacedName{Namespace: namespace, Name: name}]; d != nil {
		return d.DeepCopy(), nil
	}
	return nil, fmt.Errorf("get diagnosis %q: %w", namespace+"/"+name, pipeline.ErrGone)
}

// Save stores the status of a Diagnosis that the store has, or gives an error that wraps pipeline.ErrGone.
func (m *Memory) Save(_ context.Context, d *v1.Diagnosis) error {
	m.mu.Lock()
	mine, ok := m.diagnoses[types.NamespacedName{Namespace: d.Namespace, Name: d.Name}]
	if !ok || mine.UID != d.UID {
		m.mu.Unlock()
		return fmt.Errorf("save diagnosis %q: %w", d.Namespace+"/"+d.Name, pipeline.ErrGone)
	}
	mine.Status = *d.Status.DeepCopy()
	m.mu.Unlock()
	if m.Saved != nil {
		m.Saved(d.DeepCopy())
	}
	return nil
}

// Add takes in one object, which must be new. The store keeps it.
func (m *Memory) Add(object any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch o := object.(type) {
	case *v1.Operation:
		return insert(&m.operations, o.Name, o)
	case *v1.OperationSet:
		nodes := make([]graph.Node, len(o.Spec.AdjacencyList))
		for i, n := range o.Spec.AdjacencyList {
			nodes[i] = graph.Node{ID: n.ID, To: n.To, Operation: n.Operation}
		}
		g, err := graph.New(nodes)
		// Its status is as the manager sets it in a cluster.
		ready := metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Valid", Message: "the graph is valid", LastTransitionTime: metav1.Now()}
		if err != nil {
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "Invalid", err.Error()
		} else {
			o.Status.PathCount, o.Status.AdjacencyListHash = g.PathCount(), g.Hash()
		}
		o.Status.Ready, o.Status.Conditions, o.Status.ObservedGeneration = err == nil, []metav1.Condition{ready}, o.Generation
		return insert(&m.sets, o.Name, o)
	case *v1.Diagnosis:
		if o.Namespace == "" {
			o.Namespace = metav1.NamespaceDefault
		}
		o.UID, o.CreationTimestamp = uuid.NewUUID(), metav1.Now()
		return insert(&m.diagnoses, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, o)
	}
	return fmt.Errorf("take in %T: not a kind that runs without a cluster", object)
}

func insert[K comparable, V any](to *map[K]V, key K, value V) error {
	if *to == nil {
		*to = map[K]V{}
	}
	if _, ok := (*to)[key]; ok {
		return fmt.Errorf("take in %v: there is one of this kind and name already", key)
	}
	(*to)[key] = value
	return nil
}
