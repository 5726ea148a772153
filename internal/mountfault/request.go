// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// write brings the object of an entry in line with it. Its errors name the object.
//
// An API server whose CustomResourceDefinition is older than this agent does not know ImpactTerminating. It gets ImpactCleanup.
func (w *Writer) write(ctx context.Context, e *entry) error {
	err := w.request(ctx, e)
	if !apierrors.IsInvalid(err) || e.want == nil || e.want.Status.Impact != v1.ImpactTerminating {
		return err
	}
	e.want = e.want.DeepCopy()
	e.want.Status.Impact = v1.ImpactCleanup
	if err = w.request(ctx, e); err == nil {
		e.olderAPI = true
	}
	return err
}

// request makes the request for an entry.
func (w *Writer) request(ctx context.Context, e *entry) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	switch {
	case e.want == nil:
		if err := kubeclient.DeleteSame(ctx, w.Client, e.written); err != nil {
			return fmt.Errorf("deleting mountfault %s/%s: %w", e.written.Namespace, e.written.Name, err)
		}
		e.written = nil
		return nil
	case e.written != nil:
		f := e.written.DeepCopy()
		f.Status = *e.want.Status.DeepCopy()
		err := w.Client.Patch(ctx, f, client.MergeFrom(e.written))
		if apierrors.IsNotFound(err) { // its pod is gone, or a person deleted it
			e.written = nil
			return nil
		}
		if err != nil {
			return fmt.Errorf("writing mountfault %s/%s: %w", f.Namespace, f.Name, err)
		}
		e.noteWritten(f)
		return nil
	}
	f := e.want.DeepCopy()
	err := w.Client.Create(ctx, f)
	if apierrors.IsAlreadyExists(err) { // an object of this node is taken over, another one is left alone
		there := &v1.MountFault{}
		if err := w.Reader.Get(ctx, client.ObjectKeyFromObject(f), there); err != nil {
			return fmt.Errorf("reading mountfault %s/%s: %w", f.Namespace, f.Name, err)
		}
		if there.Status.Node == w.Node {
			e.adopt(there)
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("creating mountfault %s/%s: %w", f.Namespace, f.Name, err)
	}
	e.noteWritten(f)
	return nil
}

// noteError logs the error of a request, unless another was logged a short time ago: where one request fails, others do.
func (w *Writer) noteError(ctx context.Context, err error) {
	if ctx.Err() != nil || !w.noted.IsZero() && time.Since(w.noted) < refusedDelay {
		return
	}
	w.noted = time.Now()
	w.Log.Error(err, "Could not show the faults of the node in the API")
}
