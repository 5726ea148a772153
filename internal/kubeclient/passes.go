// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// RunPasses calls pass at once and then after each interval, until ctx is done. It logs the error of a pass with the
// message failure, and goes on.
func RunPasses(ctx context.Context, c clock.WithTicker, interval time.Duration, failure string, pass func(context.Context) error) {
	ticker := c.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := pass(ctx); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, failure)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// NodeAbsent reports whether there is no Node of that name. It reads the metadata only: a Node is large.
func NodeAbsent(ctx context.Context, r client.Reader, name string) (bool, error) {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err := r.Get(ctx, client.ObjectKey{Name: name}, node)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading node %q: %w", name, err)
	}
	return err != nil, nil
}

// DeleteUnchanged deletes an object unless it has changed since it was read. It reports whether it did.
func DeleteUnchanged(ctx context.Context, c client.Client, o client.Object) (bool, error) {
	uid, version := o.GetUID(), o.GetResourceVersion()
	err := c.Delete(ctx, o, client.Preconditions{UID: &uid, ResourceVersion: &version})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	return err == nil, err
}
