// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"slices"
	"time"
)

// Bounds of the queues.
const (
	// maxBatch is how many binds are inspected in one visit to the kubelet's mount namespace.
	maxBatch = 64
	// maxNotifications is how many notifications can wait while events are left to handle. maxNotifyDelay is how long
	// the first of them can wait.
	maxNotifications = 1024
	maxNotifyDelay   = 100 * time.Millisecond
)

// bindQueue holds the binds of a kubelet, and those of them that need an inspection.
type bindQueue struct {
	binds map[string]*bind // by mount point
	// pending are the binds to check at the next tick: those that can change without an event, and those queued since
	// the last tick.
	pending map[*bind]bool
	queue   []*bind // binds to inspect, in order
}

func newBindQueue() bindQueue {
	return bindQueue{binds: map[string]*bind{}, pending: map[*bind]bool{}}
}

func (q *bindQueue) enqueue(b *bind) {
	if !b.queued {
		b.queued, q.pending[b] = true, true
		q.queue = append(q.queue, b)
	}
}

// nextBatch removes and returns the next binds to inspect. Those that were dropped meanwhile are left out.
func (q *bindQueue) nextBatch() []*bind {
	batch := q.queue[:min(len(q.queue), maxBatch)]
	if q.queue = q.queue[len(batch):]; len(q.queue) == 0 {
		q.queue = nil
	}
	for _, b := range batch {
		b.queued = false
	}
	return slices.DeleteFunc(batch, func(b *bind) bool { return q.binds[b.point] != b })
}

// drop forgets a bind.
func (q *bindQueue) drop(b *bind) {
	delete(q.binds, b.point)
	delete(q.pending, b)
}

// notificationQueue holds notifications for the observer.
type notificationQueue []notification

// mayWait reports whether the notifications can wait until the events that are there are handled.
func (q notificationQueue) mayWait() bool {
	return len(q) > 0 && len(q) < maxNotifications && time.Since(q[0].inspectedAt) < maxNotifyDelay
}
