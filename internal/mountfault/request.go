// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// objectClient makes the requests that write one object. Their errors name it.
type objectClient struct{ *Options }

// write brings the object in line with its entry.
func (o *objectClient) write(ctx context.Context, e *entry) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	switch {
	case e.want == nil:
		return o.remove(ctx, e)
	case e.written == nil:
		return o.create(ctx, e)
	default:
		return o.change(ctx, e)
	}
}

func (o *objectClient) create(ctx context.Context, e *entry) error {
	f := e.want.DeepCopy()
	err := o.Client.Create(ctx, f)
	if apierrors.IsAlreadyExists(err) {
		return o.takeOver(ctx, e, err)
	}
	if err != nil {
		return fmt.Errorf("creating mountfault %s/%s: %w", f.Namespace, f.Name, err)
	}
	e.written = f
	return nil
}

// takeOver takes an object of this node that was there without being known. Another one is left alone.
func (o *objectClient) takeOver(ctx context.Context, e *entry, exists error) error {
	there := &v1.MountFault{}
	if err := o.Reader.Get(ctx, client.ObjectKeyFromObject(e.want), there); err != nil {
		return fmt.Errorf("reading mountfault %s/%s: %w", e.want.Namespace, e.want.Name, err)
	}
	if there.Status.Node != o.Node {
		return fmt.Errorf("creating mountfault %s/%s: %w", e.want.Namespace, e.want.Name, exists)
	}
	e.adopt(there)
	return nil
}

func (o *objectClient) change(ctx context.Context, item *entry) error {
	f := item.written.DeepCopy()
	f.Status = *item.want.Status.DeepCopy()
	err := o.Client.Patch(ctx, f, client.MergeFrom(item.written))
	if apierrors.IsNotFound(err) { // its pod is gone, or a person deleted it
		item.written = nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing mountfault %s/%s: %w", f.Namespace, f.Name, err)
	}
	item.written = f
	return nil
}

func (o *objectClient) remove(ctx context.Context, e *entry) error {
	f := e.written
	if err := kubeclient.DeleteSame(ctx, o.Client, f); err != nil {
		return fmt.Errorf("deleting mountfault %s/%s: %w", f.Namespace, f.Name, err)
	}
	e.written = nil
	return nil
}

// refused reports whether the API server refuses this object, which says nothing about others.
func refused(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.IsConflict(err)
}

// errorLog logs the errors of requests.
type errorLog struct {
	log   logr.Logger
	noted time.Time // when an error was last logged
}

// note logs an error, unless another was logged a short time ago: where one request fails, others do.
func (l *errorLog) note(ctx context.Context, err error) {
	if ctx.Err() != nil || !l.noted.IsZero() && time.Since(l.noted) < refusedDelay {
		return
	}
	l.noted = time.Now()
	l.log.Error(err, "Could not show the faults of the node in the API")
}
