// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"kubediag.org/kubediag/internal/share"
)

// requestTimeout bounds one request, and retryDelay is the least time between one that failed and the next of the same key.
const requestTimeout, retryDelay = 5 * time.Second, 2 * time.Second

// requests are made of the API server one after another, in the background. A key is asked once at a time, and namespaces take turns.
type requests struct {
	mu      sync.Mutex
	queue   share.Turns[string]
	pending map[string]func(context.Context) error
	failed  map[string]time.Time
	wake    chan struct{}
}

func newRequests() *requests {
	return &requests{pending: map[string]func(context.Context) error{}, failed: map[string]time.Time{}, wake: make(chan struct{}, 1)}
}

// add has a request made for a namespace, unless the same one waits, or has failed a short time ago.
func (r *requests) add(key, namespace string, do func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.failed[key]; r.pending[key] != nil || ok && time.Since(at) < retryDelay {
		return
	}
	r.pending[key] = do
	r.queue.Push(share.Owner{Namespace: namespace}, key)
	select {
	case r.wake <- struct{}{}:
	default: // it wakes already
	}
}

// run makes requests until ctx is done, and calls answered after each.
func (r *requests) run(ctx context.Context, log logr.Logger, answered func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		for key, do := r.next(); do != nil && ctx.Err() == nil; key, do = r.next() {
			limited, cancel := context.WithTimeout(ctx, requestTimeout)
			err := do(limited)
			cancel()
			if err != nil && ctx.Err() == nil {
				log.Error(err, "Could not ask the API server about a repair")
			}
			r.end(key, err)
			answered()
		}
	}
}

func (r *requests) next() (string, func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key, ok := r.queue.Pop(nil)
	if !ok {
		return "", nil
	}
	return key, r.pending[key]
}

func (r *requests) end(key string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, key)
	delete(r.failed, key)
	if err != nil {
		r.failed[key] = time.Now()
	}
}
