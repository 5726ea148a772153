// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Passes is work that the leader does at once, and then after each interval.
type Passes struct {
	Clock    clock.WithTicker
	Interval time.Duration
	// Name is that of the logger in the context of a pass.
	Name string
	// Failure is the message with which the error of a pass is logged.
	Failure string
	Pass    func(ctx context.Context) error
}

// NeedLeaderElection makes the leader the only one who makes passes.
func (Passes) NeedLeaderElection() bool { return true }

// Start makes passes until ctx is done. A pass that fails is logged, and made again after the usual time.
func (p Passes) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName(p.Name)
	ctx = log.IntoContext(ctx, logger)
	ticker := p.Clock.NewTicker(p.Interval)
	defer ticker.Stop()
	for {
		if err := p.Pass(ctx); err != nil && ctx.Err() == nil {
			logger.Error(err, p.Failure)
		}
		select {
		case <-ctx.Done():
			return nil
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
func DeleteUnchanged(ctx context.Context, c client.Writer, o client.Object) (bool, error) {
	return deleteIf(ctx, c, o, client.Preconditions{UID: new(o.GetUID()), ResourceVersion: new(o.GetResourceVersion())})
}

// DeleteSame deletes an object unless it is gone, or another one has its name now.
func DeleteSame(ctx context.Context, c client.Writer, o client.Object) error {
	_, err := deleteIf(ctx, c, o, client.Preconditions{UID: new(o.GetUID())})
	return err
}

func deleteIf(ctx context.Context, c client.Writer, o client.Object, conditions client.Preconditions) (bool, error) {
	err := c.Delete(ctx, o, conditions)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	return err == nil, err
}
