// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package approval brings RecoveryApprovals to the Diagnoses that they name, and refuses those that can allow nothing.
//
// It allows no repair itself. It names an approval in an annotation of the Diagnosis, where the agent of the node sees
// it, and the agent reads the approval and decides. An approval belongs to its Diagnosis and is deleted with it.
package approval

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fairqueue"
	"kubediag.org/kubediag/internal/kubeclient"
)

// These are the rights for it.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=recoveryapprovals,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=recoveryapprovals/status,verbs=patch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

const (
	// diagnosisIndex finds the approvals of a Diagnosis by its name.
	diagnosisIndex = "approval.diagnosis"
	// keepUnowned is how long an approval stays that was refused and belongs to no Diagnosis, after it has expired.
	keepUnowned = 24 * time.Hour
	// eventRefused is the reason of the Event that an approval was refused.
	eventRefused = "ApprovalRefused"
)

// Reconciler brings approvals to their Diagnoses.
type Reconciler struct {
	// Client reads both kinds from a cache, and writes to both.
	Client client.Client
	Events record.EventRecorder
	Clock  clock.PassiveClock
}

// SetupWithManager adds the reconciler, and the index by which it finds the approvals of a Diagnosis, to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	err := m.GetFieldIndexer().IndexField(context.Background(), &v1.RecoveryApproval{}, diagnosisIndex, func(o client.Object) []string {
		a, ok := o.(*v1.RecoveryApproval)
		if !ok {
			return nil
		}
		return []string{a.Spec.Diagnosis.Name}
	})
	if err != nil {
		return fmt.Errorf("indexing approvals: %w", err)
	}
	approvable := predicate.NewPredicateFuncs(func(o client.Object) bool {
		d, ok := o.(*v1.Diagnosis)
		return ok && d.Spec.Mode == v1.ModeApprove
	})
	approvals := func(ctx context.Context, d client.Object) (requests []reconcile.Request) {
		var list v1.RecoveryApprovalList
		err := r.Client.List(ctx, &list, client.InNamespace(d.GetNamespace()), client.MatchingFields{diagnosisIndex: d.GetName()})
		if err != nil {
			return nil // the cache is closed
		}
		for i := range list.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
		return requests
	}
	return builder.ControllerManagedBy(m).
		For(&v1.RecoveryApproval{}).
		Watches(&v1.Diagnosis{}, handler.EnqueueRequestsFromMapFunc(approvals), builder.WithPredicates(approvable)).
		WithOptions(controller.Options{NewQueue: fairqueue.InTurns(fairqueue.NamespaceOwner)}).
		Complete(r)
}

// Reconcile judges one approval, and names it in its Diagnosis if it counts.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	was := &v1.RecoveryApproval{}
	if err := r.Client.Get(ctx, req.NamespacedName, was); err != nil || !was.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if was.Settled() { // a refused request without a Diagnosis goes when it has expired
		if len(was.Owners()) > 0 {
			return reconcile.Result{}, nil
		}
		if left := was.Expires().Add(keepUnowned).Sub(r.Clock.Now()); left > 0 {
			return reconcile.Result{RequeueAfter: left}, nil
		}
		if err := kubeclient.DeleteSame(ctx, r.Client, was); err != nil {
			return reconcile.Result{}, fmt.Errorf("deleting approval %s/%s: %w", was.Namespace, was.Name, err)
		}
		return reconcile.Result{}, nil
	}
	diagnosis := &v1.Diagnosis{} // nil if it does not exist
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: was.Namespace, Name: was.Spec.Diagnosis.Name}, diagnosis)
	if apierrors.IsNotFound(err) {
		diagnosis = nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading diagnosis %s/%s: %w", was.Namespace, was.Spec.Diagnosis.Name, err)
	}
	now := r.Clock.Now()
	verdict := judgeApproval(was, diagnosis, now)
	if diagnosis != nil && verdict.state == "" {
		if err := r.addOwner(ctx, was, diagnosis); err != nil {
			return kubeclient.RetryResult(err)
		}
	}
	if verdict.deliverToAgent {
		if verdict, err = r.verdictInTurn(ctx, was, diagnosis); err != nil {
			return reconcile.Result{}, err
		}
	}
	if result, err := r.storeVerdict(ctx, was, diagnosis, verdict); err != nil || result.RequeueAfter > 0 {
		return result, err
	}
	if verdict.deliverToAgent && diagnosis.Annotations[v1.AnnotationApproval] != was.Name { // last, so that the agent finds the approval as it stays
		before := diagnosis.DeepCopy()
		metav1.SetMetaDataAnnotation(&diagnosis.ObjectMeta, v1.AnnotationApproval, was.Name)
		if err := r.Client.Patch(ctx, diagnosis, client.MergeFrom(before)); err != nil {
			return kubeclient.RetryResult(fmt.Errorf("naming approval in diagnosis %s/%s: %w", diagnosis.Namespace, diagnosis.Name, err))
		}
	}
	return reconcile.Result{RequeueAfter: max(was.Expires().Sub(now), time.Second)}, nil
}

// storeVerdict writes the status of an approval, and says on the Diagnosis if it was refused.
func (r *Reconciler) storeVerdict(ctx context.Context, was *v1.RecoveryApproval, diagnosis *v1.Diagnosis,
	verdict approvalVerdict) (reconcile.Result, error) {
	is := was.DeepCopy()
	is.Status.State, is.Status.Message = v1.ApprovalPending, verdict.message
	if verdict.state != "" {
		at := metav1.NewTime(r.Clock.Now())
		is.Status.State, is.Status.Time = verdict.state, &at
	}
	result, err := kubeclient.PatchStatus(ctx, r.Client, was, is)
	if err == nil && result.RequeueAfter == 0 && verdict.state == v1.ApprovalRefused && diagnosis != nil {
		r.Events.Event(diagnosis, corev1.EventTypeWarning, eventRefused,
			kubeclient.EventMessage(fmt.Sprintf("RecoveryApproval %s was refused: %s", was.Name, verdict.message),
				kubeclient.DiagnosisCommand(diagnosis)))
	}
	return result, err
}

// addOwner makes an approval belong to its Diagnosis. The cache may have left owners out if there are many, and the patch would remove
// them.
func (r *Reconciler) addOwner(ctx context.Context, approval *v1.RecoveryApproval, d *v1.Diagnosis) error {
	if len(approval.Owners()) > 0 || len(approval.OwnerReferences) >= kubeclient.MaxOwners {
		return nil
	}
	was := approval.DeepCopy()
	approval.OwnerReferences = append(approval.OwnerReferences, metav1.OwnerReference{
		APIVersion: v1.GroupVersion.String(), Kind: "Diagnosis", Name: d.Name, UID: d.UID,
	})
	if err := r.Client.Patch(ctx, approval, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("setting owner of approval %s/%s: %w", approval.Namespace, approval.Name, err)
	}
	return nil
}

// verdictInTurn returns the verdict about an approval that counts: it waits while the Diagnosis names another one that counts.
func (r *Reconciler) verdictInTurn(ctx context.Context, a *v1.RecoveryApproval, diagnosis *v1.Diagnosis) (approvalVerdict, error) {
	named := diagnosis.Annotations[v1.AnnotationApproval]
	if named != "" && named != a.Name {
		other := &v1.RecoveryApproval{}
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: named}, other)
		if client.IgnoreNotFound(err) != nil {
			return approvalVerdict{}, fmt.Errorf("reading approval %s/%s: %w", a.Namespace, named, err)
		}
		if err == nil && !other.Settled() && other.IsFor(diagnosis) && judgeApproval(other, diagnosis, r.Clock.Now()).deliverToAgent {
			return approvalVerdict{message: "RecoveryApproval " + named + " approves the same plan, and came before"}, nil
		}
	}
	return approvalVerdict{deliverToAgent: true, message: fmt.Sprintf("the agent of node %s has not taken it yet", diagnosis.Spec.NodeName)}, nil
}
