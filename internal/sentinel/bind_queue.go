// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"time"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/share"
)

// Bounds of the queues.
const (
	// maxBatch is how many binds are inspected in one visit to the kubelet's mount namespace. A visit also ends after maxVisit, so that
	// events that wait are read between two visits.
	maxBatch = 64
	maxVisit = 20 * time.Millisecond
	// maxProvenTogether is how many binds are repaired in a row. Their proofs come after the last of them.
	maxProvenTogether = 8
	// maxNotifications is how many notifications can wait while events are left to handle. maxNotifyDelay is how long
	// the first of them can wait.
	maxNotifications = 1024
	maxNotifyDelay   = 100 * time.Millisecond
)

// bindQueue holds the binds of a kubelet, and those of them that need an inspection.
type bindQueue struct {
	byPoint map[string]*bind // by mount point
	// pending are the binds to check at the next tick: those that can change without an event, and those queued since
	// the last tick.
	pending map[*bind]bool
	queue   share.Turns[*bind] // binds to inspect: namespaces take turns, and then pods
	// owner returns the pod on whose account a bind is inspected.
	owner func(*bind) share.Owner
}

func newBindQueue(pods kubelet.PodCache) bindQueue {
	return bindQueue{byPoint: map[string]*bind{}, pending: map[*bind]bool{}, owner: func(b *bind) share.Owner {
		pod := pods.PodByUID(b.sub.PodUID)
		if pod == nil {
			return share.Owner{Pod: b.sub.PodUID}
		}
		return share.Owner{Namespace: pod.Namespace, Pod: b.sub.PodUID}
	}}
}

func (q *bindQueue) enqueue(b *bind) {
	if !b.queued {
		b.queued, q.pending[b] = true, true
		q.queue.Push(q.owner(b), b)
	}
}

// nextBatch removes and returns the binds to inspect next. It leaves out those that were dropped meanwhile.
func (q *bindQueue) nextBatch() (batch []*bind) {
	for len(batch) < maxBatch {
		b, ok := q.queue.Pop(nil)
		if !ok {
			break
		}
		b.queued = false
		if q.byPoint[b.point] == b {
			batch = append(batch, b)
		}
	}
	return batch
}

// drop forgets a bind.
func (q *bindQueue) drop(b *bind) {
	delete(q.byPoint, b.point)
	delete(q.pending, b)
}
