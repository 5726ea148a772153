// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"context"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"kubediag.org/kubediag/internal/printable"
)

// conflictDelay is the time that a reconciler waits for its cache to catch up.
const conflictDelay = 200 * time.Millisecond

// PatchStatus ends a reconciliation: it makes the status of now printable, and writes it if it differs from old, of
// which now is a copy.
func PatchStatus(ctx context.Context, c client.Client, old, now client.Object) (reconcile.Result, error) {
	// Every kind here has a status.
	printable.Fields(reflect.ValueOf(now).Elem().FieldByName("Status").Addr().Interface())
	if equality.Semantic.DeepEqual(old, now) {
		return reconcile.Result{}, nil
	}
	return RetryResult(c.Status().Patch(ctx, now, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})))
}

// RetryResult is the result of a reconciliation after a write: one that others were faster than comes back after a while, and an object that
// is gone is no error.
func RetryResult(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}
