// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package diagnosis binds a Diagnosis to the node whose agent is to run it, refuses those that no agent ever could run,
// and watches over the agents: a Diagnosis whose agent is gone becomes Unknown, and Running again when it is back.
//
// It runs no Diagnosis, decides about no fault and writes no results: from the moment it is bound, a Diagnosis belongs
// to the agent of its node. Binding is two writes: a patch of the label and of spec.nodeName, and then the condition Bound, which
// authors cannot write.
package diagnosis

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/admission"
	"kubediag.org/kubediag/internal/fairqueue"
	"kubediag.org/kubediag/internal/kubeclient"
)

// maxConcurrentReconciles is how many Diagnoses are reconciled at once.
const maxConcurrentReconciles = 4

// Delays before a Diagnosis is reconciled again. While it waits, the delay doubles each time, from one second to one minute.
const (
	conflictDelay = 100 * time.Millisecond
	minWait       = time.Second
	maxWait       = time.Minute
)

// The permissions of the manager for this.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods;nodes,verbs=get
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;validatingadmissionpolicybindings,resourceNames=kubediag-diagnosis-rights,verbs=get
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get,namespace=kubediag

// Reconciler binds Diagnoses and watches over their agents.
type Reconciler struct {
	// Client reads Diagnoses from a cache and writes them.
	Client client.Client
	// Reader reads pods, nodes and Leases from the API server itself: no cache of them grows with the cluster.
	Reader client.Reader
	Events record.EventRecorder
	Clock  clock.PassiveClock
	// Agents knows which agents are alive.
	Agents *Agents
	// Rights knows if people may create Diagnoses of pods of other namespaces.
	Rights *admission.Rights

	places places
}

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	if err := m.GetFieldIndexer().IndexField(context.Background(), &v1.Diagnosis{}, placeIndex, r.placeValues); err != nil {
		return fmt.Errorf("indexing diagnoses by %s: %w", placeIndex, err)
	}
	return builder.ControllerManagedBy(m).
		For(&v1.Diagnosis{}, builder.WithPredicates(managerPredicate())).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: maxConcurrentReconciles,
			NewQueue:                fairqueue.InTurns(fairqueue.DiagnosisOwner(r.Client, r.Agents.Namespace)),
		}).
		Complete(r)
}

// reconcileScope is one reconciliation of a Diagnosis: the object before and after, and the time until the next one.
type reconcileScope struct {
	before, diagnosis *v1.Diagnosis
	requeueAfter      time.Duration
	events            []eventNote
	isDone            bool
}

// Reconcile takes one Diagnosis through its steps and writes the changes. It refuses an invalid Diagnosis once, and ignores it then.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	was := &v1.Diagnosis{}
	if err := r.Client.Get(ctx, req.NamespacedName, was); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	scope := &reconcileScope{before: was, diagnosis: was.DeepCopy()}
	for _, step := range []func(context.Context, *reconcileScope) error{r.skipEnded, r.validateSpec, r.checkNamespace, r.bindToNode, r.checkAgent} {
		if err := step(ctx, scope); err != nil {
			return reconcile.Result{}, err
		}
		if scope.isDone {
			break
		}
	}
	var err error
	from := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}) // so that no write of an agent or a person is lost
	switch is := scope.diagnosis; {
	case !equality.Semantic.DeepEqual(was.Status, is.Status): // label and spec are the same then
		err = r.Client.Status().Patch(ctx, is, from)
	case was.Labels[v1.LabelNode] != is.Labels[v1.LabelNode] || was.Spec.NodeName != is.Spec.NodeName:
		err = r.Client.Patch(ctx, is, from)
		if err == nil && isBound(is) && !isOver(is) && !is.HasPlace() { // this write has changed the generation, for which the place is
			from = client.MergeFromWithOptions(is.DeepCopy(), client.MergeFromWithOptimisticLock{})
			r.markBound(scope)
			err = r.Client.Status().Patch(ctx, is, from)
		}
	}
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	case err != nil:
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	countWritten(scope)
	for _, n := range scope.events {
		r.Events.Event(scope.diagnosis, n.kind, n.reason, kubeclient.EventMessage(n.message, kubeclient.DiagnosisCommand(scope.diagnosis)))
	}
	return reconcile.Result{RequeueAfter: scope.requeueAfter}, nil
}
