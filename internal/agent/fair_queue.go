// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"maps"
	"slices"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// fairQueue is the order in which Diagnoses get a worker. Namespaces take turns. A namespace has a quarter of the
// workers, at least one. It gets more only if no other namespace waits, and never the last quarter, so that one that
// comes later finds a worker free.
type fairQueue struct {
	workers, perNamespace int

	mu            sync.Mutex
	waiting       map[string][]reconcile.Request // by namespace
	running       map[string]int
	total         int    // of running
	lastNamespace string // namespace that had its turn
}

func newFairQueue(workers int) *fairQueue {
	return &fairQueue{
		workers: workers, perNamespace: max(1, workers/4),
		waiting: map[string][]reconcile.Request{}, running: map[string]int{},
	}
}

// newQueue makes the work queue of a controller, which keeps each request once and those that are to be tried later.
func (f *fairQueue) newQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{
		Name: name, Queue: f,
	})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{
		Name:          name,
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[reconcile.Request]{Name: name, Queue: queue}),
	})
}

// Touch is called for what waits already. It keeps its place.
func (f *fairQueue) Touch(reconcile.Request) {}

// Push adds a request.
func (f *fairQueue) Push(r reconcile.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting[r.Namespace] = append(f.waiting[r.Namespace], r)
}

// Len is 1 where a request may have a worker now, otherwise 0. A worker that is done asks again, so none sleeps that
// may work.
func (f *fairQueue) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.nextNamespace(); ok {
		return 1
	}
	return 0
}

// Pop takes out the request whose turn it is.
func (f *fairQueue) Pop() reconcile.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	namespace, ok := f.nextNamespace()
	if !ok {
		return reconcile.Request{} // the work queue asks for Len first, under its lock
	}
	r := f.waiting[namespace][0]
	if f.waiting[namespace] = f.waiting[namespace][1:]; len(f.waiting[namespace]) == 0 {
		delete(f.waiting, namespace)
	}
	f.lastNamespace = namespace
	f.running[namespace]++
	f.total++
	return r
}

// release is called when a worker has ended with a request.
func (f *fairQueue) release(r reconcile.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total--
	if f.running[r.Namespace]--; f.running[r.Namespace] <= 0 {
		delete(f.running, r.Namespace)
	}
}

// fairReconciler is a reconciler whose requests come from a fairQueue.
type fairReconciler struct {
	queue *fairQueue
	reconcile.Reconciler
}

// Reconcile serves a request and frees its place, however that ends.
func (f fairReconciler) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	defer f.queue.release(r)
	return f.Reconciler.Reconcile(ctx, r)
}

// nextNamespace is the namespace whose turn it is.
func (f *fairQueue) nextNamespace() (namespace string, ok bool) {
	names := slices.Sorted(maps.Keys(f.waiting))
	at, found := slices.BinarySearch(names, f.lastNamespace)
	if found {
		at++
	}
	for i := range names {
		if name := names[(at+i)%len(names)]; f.running[name] < f.perNamespace {
			return name, true
		}
	}
	if len(names) == 1 && f.total < f.workers-f.perNamespace {
		return names[0], true
	}
	return "", false
}
