// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"kubediag.org/kubediag/internal/share"
)

// fairQueue orders Diagnoses for the workers. Namespaces take turns, and so do the pods of each. A namespace has a quarter of the
// workers, at least one. It gets more only if no other namespace waits. The last quarter of the workers stays free for namespaces
// that come later.
type fairQueue struct {
	workers, perNamespace int
	// owner is on whose account a Diagnosis runs.
	owner func(reconcile.Request) share.Owner

	mu      sync.Mutex
	waiting share.Turns[reconcile.Request]
	running map[reconcile.Request]string // their namespaces
	taken   map[string]int               // workers of each namespace
}

func newFairQueue(workers int, owner func(reconcile.Request) share.Owner) *fairQueue {
	return &fairQueue{
		workers: workers, perNamespace: share.Quarter(workers), owner: owner,
		running: map[reconcile.Request]string{}, taken: map[string]int{},
	}
}

// Touch is called for a request that waits already. It keeps its place.
func (f *fairQueue) Touch(reconcile.Request) {}

// Push adds a request.
func (f *fairQueue) Push(r reconcile.Request) {
	owner := f.owner(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting.Push(owner, r)
}

// Len is 1 where a request may have a worker now, otherwise 0. A worker that is done asks again, so none sleeps that
// may work.
func (f *fairQueue) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting.Ready(f.may) {
		return 1
	}
	return 0
}

// may reports whether a namespace may have one more worker. The caller holds the lock.
func (f *fairQueue) may(namespace string) bool {
	return f.taken[namespace] < f.perNamespace || f.waiting.Namespaces() == 1 && len(f.running) < f.workers-f.perNamespace
}

// Pop takes out the request whose turn it is.
func (f *fairQueue) Pop() reconcile.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	owner, r, ok := f.waiting.PopOwner(f.may)
	if !ok {
		return reconcile.Request{} // the work queue asks for Len first, under its lock
	}
	f.running[r] = owner.Namespace
	f.taken[owner.Namespace]++
	return r
}

// release is called when a worker has ended with a request.
func (f *fairQueue) release(r reconcile.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	namespace, there := f.running[r]
	if !there {
		return
	}
	delete(f.running, r)
	if f.taken[namespace]--; f.taken[namespace] <= 0 {
		delete(f.taken, namespace)
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
