// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package operationset says in the status of an OperationSet whether a Diagnosis can use it: whether its list is a
// graph, and whether every Operation in it exists and is ready. It runs no Operation, and no list makes it fail, loop or
// grow. A condition reports the problems, and the set is checked again when it or one of its Operations changes.
package operationset

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/kubeclient"
)

// The permissions of the manager for this.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=operations;operationsets,verbs=get;list;watch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=operationsets/status,verbs=patch

// Reconciler writes the status of OperationSets.
type Reconciler struct {
	Client client.Client
}

// SetupWithManager adds the reconciler, and the index by which it finds the sets of an Operation, to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	if err := m.GetFieldIndexer().IndexField(context.Background(), &v1.OperationSet{}, operationIndex, operationsOf); err != nil {
		return err
	}
	sets := func(ctx context.Context, op client.Object) []reconcile.Request { // that name an Operation
		var list v1.OperationSetList
		if err := r.Client.List(ctx, &list, client.MatchingFields{operationIndex: op.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
			return nil // the cache is not there; it lists every set when it is
		}
		requests := make([]reconcile.Request, len(list.Items))
		for i := range list.Items {
			requests[i].NamespacedName = client.ObjectKeyFromObject(&list.Items[i])
		}
		return requests
	}
	return builder.ControllerManagedBy(m).
		For(&v1.OperationSet{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1.Operation{}, handler.EnqueueRequestsFromMapFunc(sets), builder.WithPredicates(readinessChanged())).
		Complete(r)
}

// Reconcile checks one OperationSet. An invalid one is not tried again before something changes.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var old v1.OperationSet
	if err := r.Client.Get(ctx, req.NamespacedName, &old); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	set := old.DeepCopy()
	status := v1.OperationSetStatus{ObservedGeneration: set.Generation, Conditions: set.Status.Conditions}
	ready := metav1.Condition{
		Type: v1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: set.Generation,
	}
	nodes := make([]graph.Node, len(set.Spec.AdjacencyList))
	for i, n := range set.Spec.AdjacencyList {
		nodes[i] = graph.Node{ID: n.ID, To: n.To, Operation: n.Operation}
	}
	g, err := graph.New(nodes)
	if err != nil {
		ready.Reason, ready.Message = v1.ReasonInvalidGraph, strings.ReplaceAll(err.Error(), "\n", "; ")
	} else {
		status.AdjacencyListHash, status.PathCount = g.Hash(), g.PathCount()
		status.Paths = listedPaths(g, set.Spec.AdjacencyList)
		if ready.Reason, ready.Message, err = r.readOperations(ctx, set); err != nil {
			return reconcile.Result{}, err
		}
	}
	if ready.Reason == "" {
		status.Ready = true
		ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, v1.ReasonReady, "OperationSet can be used"
	}
	meta.SetStatusCondition(&status.Conditions, ready)
	set.Status = status
	return kubeclient.PatchStatus(ctx, r.Client, &old, set)
}
