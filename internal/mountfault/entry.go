// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

// entry is one object: as it should be, and as the API server has it. nil: it should not be there, or is not.
type entry struct {
	want, written *v1.MountFault
	// last is how the object should have been when it last should be there.
	last *v1.MountFault
	// since is when the fault began that is there now, claim the one of its volume.
	since metav1.Time
	claim string
	// kept is set while it is not known whether the fault of the object is still there. Nothing is done then. gone is
	// set if the fault is not there. Neither: it is there, but may have no object of its own.
	kept, gone bool
	// notBefore is when the object may be written next.
	notBefore time.Time
	// said is when the last Event about the fault was sent. announced is set if the last one did not say that it is
	// gone.
	said      time.Time
	announced bool
}

// adopt takes an object that the API server has.
func (e *entry) adopt(f *v1.MountFault) {
	if e.written == nil {
		e.said, e.announced = time.Now(), true // by a predecessor
	}
	e.last, e.written, e.since, e.claim = f, f, f.Status.Since, f.Status.Claim
}

// remember gives an object what is known of its fault from earlier.
func (e *entry) remember(f *v1.MountFault) {
	f.Status.Claim = e.claim
	if !e.since.IsZero() && e.since.Before(&f.Status.Since) {
		f.Status.Since = e.since
	}
	e.since = f.Status.Since
}

// pending reports whether the object differs from what it should be.
func (e *entry) pending() bool {
	if e.kept {
		return false
	}
	return (e.want == nil) != (e.written == nil) || e.want != nil && !same(e.want, e.written)
}

// same compares two objects but for what alone is no reason to write: evidence has numbers that change at every look.
func same(a, b *v1.MountFault) bool {
	x, y := a.Status.DeepCopy(), b.Status.DeepCopy()
	x.Evidence, y.Evidence = nil, nil
	x.LastSeen, y.LastSeen = metav1.Time{}, metav1.Time{}
	return equality.Semantic.DeepEqual(x, y)
}

// settle makes the write that is due for an entry. An error is one that concerns other objects too.
func (w *Writer) settle(ctx context.Context, name types.NamespacedName) error {
	item, now := w.entries[name], time.Now()
	w.announce(ctx, item)
	if !item.pending() {
		if item.written == nil && !now.Before(item.notBefore) {
			delete(w.entries, name)
		}
		return nil
	}
	if now.Before(item.notBefore) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	item.notBefore = now.Add(w.Interval)
	var err error
	switch {
	case item.want == nil:
		err = w.remove(ctx, item)
	case item.written == nil:
		err = w.create(ctx, item)
	default:
		err = w.change(ctx, item)
	}
	if refused(err) {
		item.notBefore = now.Add(refusedDelay)
		w.note(ctx, err)
		return nil
	}
	return err
}

// refused reports whether the API server refuses this object, which says nothing about others.
func refused(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.IsConflict(err)
}

func (w *Writer) create(ctx context.Context, e *entry) error {
	f := e.want.DeepCopy()
	err := w.Client.Create(ctx, f)
	if apierrors.IsAlreadyExists(err) {
		return w.takeOver(ctx, e, err)
	}
	if err != nil {
		return fmt.Errorf("creating mountfault %s/%s: %w", f.Namespace, f.Name, err)
	}
	e.written = f
	return nil
}

// takeOver takes an object of this node that was there without being known. Another one is left alone.
func (w *Writer) takeOver(ctx context.Context, e *entry, exists error) error {
	there := &v1.MountFault{}
	if err := w.Reader.Get(ctx, client.ObjectKeyFromObject(e.want), there); err != nil {
		return fmt.Errorf("reading mountfault %s/%s: %w", e.want.Namespace, e.want.Name, err)
	}
	if there.Status.Node != w.Node {
		return fmt.Errorf("creating mountfault %s/%s: %w", e.want.Namespace, e.want.Name, exists)
	}
	e.adopt(there)
	return nil
}

func (w *Writer) change(ctx context.Context, item *entry) error {
	f := item.written.DeepCopy()
	f.Status = *item.want.Status.DeepCopy()
	err := w.Client.Patch(ctx, f, client.MergeFrom(item.written))
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

func (w *Writer) remove(ctx context.Context, e *entry) error {
	f := e.written
	err := w.Client.Delete(ctx, f.DeepCopy(), client.Preconditions{UID: &f.UID})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting mountfault %s/%s: %w", f.Namespace, f.Name, err)
	}
	e.written = nil
	return nil
}
