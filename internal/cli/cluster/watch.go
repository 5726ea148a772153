// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/cli/verb"
)

// watchRetry is the time between two attempts to reach the API server.
const watchRetry = time.Second

// errDone ends a watch from within.
var errDone = errors.New("done")

// objectChange is a change of an object. Kinds are those of package watch: Added, Modified and Deleted.
type objectChange struct {
	kind   watch.EventType
	object runtime.Object
}

// objectWatcher follows objects. It survives an API server that is away for a while. It is the store of client-go's Reflector, which
// calls one method at a time.
type objectWatcher struct {
	server  ctrlclient.WithWatch
	newList func() ctrlclient.ObjectList
	options []ctrlclient.ListOption
	// connectionLost is called when the API server does not answer, once each time.
	connectionLost func(error)
	// reduce frees the parts of an object that are not needed, before the next page of the list is read. It may be nil, and may see an object twice.
	reduce func(runtime.Object)
	// listed is called after each list, when all changes since the last one have been handed on. It may be nil.
	listed func()

	see    func(objectChange) error
	end    context.CancelCauseFunc // ends the watch
	silent bool                    // connectionLost was called, and there was no answer since

	mu       sync.Mutex
	byUID    map[types.UID]runtime.Object
	complete bool // byUID has all objects
}

// known are the objects as the watch has last seen them, and whether these are all.
func (w *objectWatcher) known() (all []runtime.Object, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.byUID)), w.complete
}

// know takes the objects of a list as those that are known.
func (w *objectWatcher) know(items []runtime.Object, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.byUID, w.complete = map[types.UID]runtime.Object{}, complete
	for _, item := range items {
		w.byUID[metadata(item).GetUID()] = item
	}
}

// listFirst lists the objects as they are.
func (w *objectWatcher) listFirst(ctx context.Context) ([]runtime.Object, error) {
	list, err := w.list(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	items, err := meta.ExtractList(list)
	w.know(items, err == nil)
	return items, err
}

// followChanges hands on the changes after listFirst, or all objects and then the changes, until see returns an error or ctx ends.
func (w *objectWatcher) followChanges(ctx context.Context, see func(objectChange) error) error {
	ctx, w.end = context.WithCancelCause(ctx)
	defer w.end(nil)
	w.see = func(now objectChange) error {
		if ctx.Err() == nil {
			if err := see(now); err != nil {
				w.end(err)
			}
		}
		return nil
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			// Without a version, it does not come from the cache of the API server, which lags behind.
			list, err := w.list(ctx, metav1.ListOptions{Limit: o.Limit, Continue: o.Continue})
			w.answered(ctx, err)
			if err == nil && w.reduce != nil {
				err = meta.EachListItem(list, func(o runtime.Object) error {
					w.reduce(o)
					return nil
				})
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := w.server.Watch(ctx, w.newList(), append(w.options, &ctrlclient.ListOptions{Raw: &o})...)
			w.answered(ctx, err)
			return events, err
		},
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, w), nil, w,
		cache.ReflectorOptions{Backoff: &wait.Backoff{Duration: watchRetry}}).RunWithContext(ctx)
	return context.Cause(ctx)
}

func (w *objectWatcher) list(ctx context.Context, o metav1.ListOptions) (ctrlclient.ObjectList, error) {
	list := w.newList()
	return list, w.server.List(ctx, list, append(w.options, &ctrlclient.ListOptions{Raw: &o})...)
}

// IsWatchListSemanticsUnSupported is true: an API server before Kubernetes 1.27 does not refuse to send a list as a watch, and never ends it.
func (w *objectWatcher) IsWatchListSemanticsUnSupported() bool { return true }

// answered reports an error that passes, and ends the watch for any other.
func (w *objectWatcher) answered(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, verb.ErrRefused), errors.Is(err, errNotServed):
		w.end(err)
	case err != nil && !w.silent:
		w.silent = true
		w.connectionLost(err)
	case err == nil:
		w.silent = false
	}
}

// Add takes a new object.
func (w *objectWatcher) Add(o any) error { return w.take(watch.Added, o) }

// Update takes an object that has changed.
func (w *objectWatcher) Update(o any) error { return w.take(watch.Modified, o) }

// Delete forgets an object.
func (w *objectWatcher) Delete(o any) error { return w.take(watch.Deleted, o) }

// Resync does nothing: an object that has not changed is not handed on.
func (w *objectWatcher) Resync() error { return nil }

func (w *objectWatcher) take(kind watch.EventType, o any) error {
	object, ok := o.(runtime.Object)
	if !ok {
		return nil
	}
	if w.reduce != nil {
		w.reduce(object)
	}
	w.mu.Lock()
	if uid := metadata(object).GetUID(); kind == watch.Deleted {
		delete(w.byUID, uid)
	} else {
		w.byUID[uid] = object
	}
	w.mu.Unlock()
	return w.see(objectChange{kind, object})
}

// Replace takes a list, and hands on the changes since the last one.
func (w *objectWatcher) Replace(list []any, _ string) error {
	gone := maps.Clone(w.byUID)
	for _, o := range list {
		m, kind := metadata(o), watch.Added
		old, was := gone[m.GetUID()]
		delete(gone, m.GetUID())
		if was && metadata(old).GetResourceVersion() == m.GetResourceVersion() {
			continue
		}
		if was {
			kind = watch.Modified
		}
		if err := w.take(kind, o); err != nil {
			return err
		}
	}
	for _, o := range gone {
		if err := w.take(watch.Deleted, o); err != nil {
			return err
		}
	}
	w.mu.Lock()
	w.complete = true
	w.mu.Unlock()
	if w.listed != nil {
		w.listed()
	}
	return nil
}

// metadata is that of an object; empty if it has none.
func metadata(o any) metav1.Object {
	access, err := meta.Accessor(o)
	if err != nil {
		return &metav1.ObjectMeta{}
	}
	return access
}
