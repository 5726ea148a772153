// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"kubediag.org/kubediag/internal/cli/verb"
)

// watchRetry is the time between two attempts to reach the API server.
const watchRetry = time.Second

// errDone ends a watch from within.
var errDone = errors.New("done")

// objectChange is what became of an object. Types are those of package watch: Added, Modified and Deleted.
type objectChange struct {
	kind   watch.EventType
	object runtime.Object
}

// objectWatcher follows the objects of a place. It survives an API server that is away for a while.
type objectWatcher struct {
	client  *client
	place   resourcePlace
	options metav1.ListOptions
	newList func() runtime.Object
	// connectionLost is called when the API server does not answer, once each time.
	connectionLost func(error)

	knownByUID map[types.UID]runtime.Object
	version    string
}

// listFirst lists the objects as they are.
func (w *objectWatcher) listFirst(ctx context.Context) ([]runtime.Object, error) {
	list := w.newList()
	if err := w.client.listObjects(ctx, w.place, w.options, list); err != nil {
		return nil, err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, fmt.Errorf("read list of %s: %w", w.place.apiResource, err)
	}
	access, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("read list of %s: %w", w.place.apiResource, err)
	}
	w.version, w.knownByUID = access.GetResourceVersion(), map[types.UID]runtime.Object{}
	for _, item := range items {
		w.knownByUID[metadata(item).GetUID()] = item
	}
	return items, nil
}

// followChanges hands on what changes after start, until see returns an error or ctx ends.
func (w *objectWatcher) followChanges(ctx context.Context, see func(objectChange) error) error {
	var stopped error // by see
	hand := func(now objectChange) error {
		stopped = see(now)
		return stopped
	}
	silent := false
	for {
		err := w.followOneWatch(ctx, hand)
		for err == nil || stopped == nil && !endsWatch(ctx, err) {
			if err != nil && !silent {
				silent = true
				w.connectionLost(err)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(watchRetry):
			}
			if err = w.listAgain(ctx, hand); err == nil {
				silent = false
				break
			}
		}
		if err != nil {
			return err
		}
	}
}

// endsWatch reports whether an error is not one that passes.
func endsWatch(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, verb.ErrRefused) || errors.Is(err, errNotServed)
}

// followOneWatch follows one watch to its end.
func (w *objectWatcher) followOneWatch(ctx context.Context, see func(objectChange) error) error {
	o := w.options
	o.ResourceVersion = w.version
	events, err := w.client.watchObjects(ctx, w.place, o)
	if err != nil {
		return err
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		if event.Type == watch.Error || event.Type == watch.Bookmark {
			return nil // the version is too old, most likely: it is listed again
		}
		m := metadata(event.Object)
		w.version = m.GetResourceVersion()
		if event.Type == watch.Deleted {
			delete(w.knownByUID, m.GetUID())
		} else {
			w.knownByUID[m.GetUID()] = event.Object
		}
		if err := see(objectChange{event.Type, event.Object}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// listAgain lists the objects, and hands on what has changed meanwhile.
func (w *objectWatcher) listAgain(ctx context.Context, see func(objectChange) error) error {
	before := w.knownByUID
	items, err := w.listFirst(ctx)
	if err != nil {
		return err
	}
	for _, item := range items {
		m, kind := metadata(item), watch.Added
		old, was := before[m.GetUID()]
		delete(before, m.GetUID())
		if was {
			if metadata(old).GetResourceVersion() == m.GetResourceVersion() {
				continue
			}
			kind = watch.Modified
		}
		if err := see(objectChange{kind, item}); err != nil {
			return err
		}
	}
	for _, gone := range before {
		if err := see(objectChange{watch.Deleted, gone}); err != nil {
			return err
		}
	}
	return nil
}

// metadata is that of an object; empty if it has none.
func metadata(o runtime.Object) metav1.Object {
	access, err := meta.Accessor(o)
	if err != nil {
		return &metav1.ObjectMeta{}
	}
	return access
}
