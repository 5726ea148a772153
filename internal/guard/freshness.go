// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Freshness knows for how long changes of policies may have been missed. Knowledge is current while a watch is open, and while
// the API server answers the renewals of the agent's Lease. A watch alone does not show that its connection is dead.
type Freshness struct {
	mu sync.Mutex
	// watching is set from a successful request for a watch until the next one begins. closed is when that was.
	watching bool
	closed   time.Time
	answered time.Time
}

// Age returns for how long changes may have been missed. known is false if policies have never been read.
func (f *Freshness) Age(now time.Time) (age time.Duration, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answered.IsZero() || !f.watching && f.closed.IsZero() {
		return 0, false
	}
	age = now.Sub(f.answered)
	if !f.watching {
		age = max(age, now.Sub(f.closed))
	}
	return age, true
}

// Answered records that the API server has answered.
func (f *Freshness) Answered() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered = time.Now()
}

// begin records that a request begins, which an informer makes if it has no watch.
func (f *Freshness) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watching {
		f.watching, f.closed = false, time.Now()
	}
}

func (f *Freshness) opened() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watching = true
}

// Follow returns a ListerWatcher that makes the same requests, and records how they end.
func (f *Freshness) Follow(of cache.ListerWatcher) cache.ListerWatcher {
	inner := cache.ToListerWatcherWithContext(of)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			f.begin()
			return inner.ListWithContext(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			f.begin()
			w, err := inner.WatchWithContext(ctx, o)
			if err == nil {
				f.opened()
			}
			return w, err
		},
	}
}
