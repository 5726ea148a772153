// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package shipped keeps the Operations and OperationSets that come with a release as the release has them: it creates
// those that are missing, and updates those that an earlier release has written.
//
// It never changes an object that a user has written or changed. An annotation has the hash of the spec that was
// written last; a spec with another hash is a user's.
package shipped

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "kubediag.org/kubediag/api/v1"
)

// The rights of the manager for this: it can change no other object than those that ship.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=operations;operationsets,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=operations,verbs=patch,resourceNames=auto-collector;auto-diagnoser;auto-recover;block-device-collector;held-device-diagnoser;held-device-recover;idle-device-recover;mount-impact-diagnoser;mount-info-collector;mount-namespace-collector;node-mount-diagnoser;node-mount-recover;orphaned-pod-collector;orphaned-pod-recover;pod-detail-collector;pod-evict-recover;subpath-remount-diagnoser;subpath-remount-recover;volume-health-collector;volume-health-diagnoser;volume-rebind-recover
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=operationsets,verbs=patch,resourceNames=auto;held-device-op-set;idle-device-op-set;mount-impact-op-set;node-mount-op-set;orphaned-pod-op-set;pod-evict-op-set;subpath-remount-op-set;volume-health-op-set

// Reconciler keeps the shipped objects.
type Reconciler struct {
	Client client.Client
	// Version is the release's.
	Version string

	shipped []shippedObject
}

// allObjects is the one request: all shipped objects are reconciled together.
var allObjects = reconcile.Request{}

// SetupWithManager adds the reconciler to a manager. It reconciles when it starts, and when a shipped object changes.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	var err error
	if r.shipped, err = loadShipped(); err != nil {
		return err
	}
	names := map[string]bool{}
	for _, o := range r.shipped {
		names[o.GetName()] = true
	}
	ours := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		if names[o.GetName()] {
			return []reconcile.Request{allObjects}
		}
		return nil
	})
	begin := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(allObjects)
		return nil
	})
	return builder.ControllerManagedBy(m).Named("shipped").
		Watches(&v1.Operation{}, ours).Watches(&v1.OperationSet{}, ours).WatchesRawSource(begin).
		Complete(r)
}

// Reconcile creates or updates all shipped objects.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var errs []error
	for _, want := range r.shipped {
		if err := r.ensureObject(ctx, want); err != nil {
			errs = append(errs, fmt.Errorf("keeping %s %q: %w", want.objectKind(), want.GetName(), err))
		}
	}
	return reconcile.Result{}, errors.Join(errs...)
}

// ensureObject creates or updates one object, or leaves it alone.
func (r *Reconciler) ensureObject(ctx context.Context, want shippedObject) error {
	live := want.newEmpty()
	err := r.Client.Get(ctx, client.ObjectKey{Name: want.GetName()}, live)
	if apierrors.IsNotFound(err) {
		is := want.deepCopy()
		if err := is.annotate(r.Version); err != nil {
			return err
		}
		err := r.Client.Create(ctx, is.Object)
		if err == nil {
			log.FromContext(ctx).Info("Created what ships", "kind", want.objectKind(), "name", want.GetName())
		}
		return client.IgnoreAlreadyExists(err) // the cache is behind, and its next event comes here again
	}
	if err != nil {
		return err
	}
	is := shippedObject{live}
	if kept, err := is.belongsToUser(want); err != nil || kept {
		return err
	}
	was := is.deepCopy()
	is.takeSpec(want)
	if err := is.annotate(r.Version); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(is.specPointer(), was.specPointer()) && maps.Equal(is.GetLabels(), was.GetLabels()) &&
		maps.Equal(is.GetAnnotations(), was.GetAnnotations()) {
		return nil
	}
	if err := r.Client.Patch(ctx, is.Object, client.MergeFromWithOptions(was.Object, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	log.FromContext(ctx).Info("Updated what ships", "kind", want.objectKind(), "name", want.GetName())
	return nil
}
