// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"context"
	"fmt"
	"slices"
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
	// Name is the name of the logger in the context of a pass.
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

// pageSize bounds one answer of the API server, unless an option does. Others write the objects, and may write 1.5 MB into each.
const pageSize = client.Limit(64)

// EachPage lists objects page by page, each into a copy of empty: a list that is read again would keep its old content.
func EachPage[L client.ObjectList](ctx context.Context, r client.Reader, empty L, visit func(page L), options ...client.ListOption) error {
	for next := ""; ; {
		page := empty.DeepCopyObject().(L)
		if err := r.List(ctx, page, slices.Concat([]client.ListOption{pageSize}, options, []client.ListOption{client.Continue(next)})...); err != nil {
			return err
		}
		visit(page)
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}

// MetadataList returns an empty list of objects of core/v1 that holds their metadata only. kind is the kind of one object.
func MetadataList(kind string) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
	return list
}

// Metadata is an object of core/v1 that holds its metadata only.
func Metadata(kind string) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	return object
}

// NodeAbsent reports whether there is no Node of that name. It reads the metadata only: a Node is large.
func NodeAbsent(ctx context.Context, r client.Reader, name string) (bool, error) {
	err := r.Get(ctx, client.ObjectKey{Name: name}, Metadata("Node"))
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
