// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/util/workqueue"

	"kubediag.org/kubediag/internal/share"
)

// requestTimeout bounds one request, and retryDelay is the least time between one that failed and the next of the same key.
const requestTimeout, retryDelay = 5 * time.Second, 2 * time.Second

// request is the place of a request in the queue.
type request struct{ key, namespace string }

// requests are made of the API server one after another, in the background. A key is asked once at a time, and namespaces take turns.
type requests struct {
	queue  workqueue.TypedInterface[request]
	failed *cache.LRUExpireCache // keys, for retryDelay

	mu      sync.Mutex
	pending map[request]func(context.Context) error
}

func newRequests() *requests {
	return &requests{
		queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[request]{
			Queue: share.NewStore(func(r request) share.Owner { return share.Owner{Namespace: r.namespace} }),
		}),
		failed: cache.NewLRUExpireCache(maxObjects), pending: map[request]func(context.Context) error{},
	}
}

// add has a request made for a namespace, unless the same one waits, or has failed a short time ago.
func (r *requests) add(key, namespace string, do func(context.Context) error) {
	next := request{key, namespace}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, failed := r.failed.Get(next); failed || r.pending[next] != nil {
		return
	}
	r.pending[next] = do
	r.queue.Add(next)
}

// run makes requests until ctx is done, and calls answered after each.
func (r *requests) run(ctx context.Context, log logr.Logger, answered func()) {
	defer context.AfterFunc(ctx, r.queue.ShutDown)()
	for {
		next, ended := r.queue.Get()
		if ended || ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		do := r.pending[next]
		r.mu.Unlock()
		limited, cancel := context.WithTimeout(ctx, requestTimeout)
		err := do(limited)
		cancel()
		if err != nil && ctx.Err() == nil {
			log.Error(err, "Could not ask the API server about a repair")
		}
		r.mu.Lock()
		if err != nil {
			r.failed.Add(next, nil, retryDelay)
		}
		delete(r.pending, next)
		r.mu.Unlock()
		r.queue.Done(next)
		answered()
	}
}
