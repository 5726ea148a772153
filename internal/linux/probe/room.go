// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"maps"

	"kubediag.org/kubediag/internal/linux/sys"
)

// The bounds of what waits since earlier passes.
const (
	// maxWaiters is how many threads may wait in all before file systems that have answered when they were asked last
	// have no more than the share of their owner either.
	maxWaiters = 512
	// fewWaiters is the same on kernels that do not give back the memory of a process which was killed and cannot end
	// (before 5.15): some 5 MiB each.
	fewWaiters = 32
	// shares is which part of the room that is left one owner may have.
	shares = 8
	// unbounded is the room of those whom only the number of threads bounds.
	unbounded = 1 << 30
	// maxKnown bounds of how many file systems is remembered that they have answered.
	maxKnown = 1 << 16
)

// room is how many threads may wait, as the waiters of earlier passes leave it. The share of an owner becomes smaller with
// the room that is left, and is never less than one thread: so no owner takes all of it, and no owner is left without.
type room struct {
	left int // in all
	of   map[string]int
}

// newRoom counts those that wait.
func (p *Prober) newRoom() *room {
	r := &room{left: maxWaiters, of: map[string]int{}}
	if sys.HasMemoryRelease.Probe() != nil {
		r.left = fewWaiters
	}
	note := func(w waiter) {
		r.left--
		r.of[w.owner]++
	}
	for _, w := range p.waiting {
		note(w)
	}
	for _, w := range p.blocked {
		note(w)
	}
	return r
}

// proven is the room for file systems that have answered when they were asked last.
func (r *room) proven() request {
	if r.left > 0 {
		return request{RoomElse: unbounded}
	}
	return r.others()
}

// others is the room for all others. Questions without an owner take what they need.
func (r *room) others() request {
	share := max(1, r.left/shares)
	left := map[string]int{"": unbounded}
	for owner, n := range r.of {
		if owner != "" {
			left[owner] = max(0, share-n)
		}
	}
	return request{Room: left, RoomElse: share}
}

// dropOldWaiters forgets those that wait no more.
func (p *Prober) dropOldWaiters() {
	maps.DeleteFunc(p.waiting, func(_ uint64, w waiter) bool { return !w.there() })
	maps.DeleteFunc(p.blocked, func(_ pathToMount, w waiter) bool { return !w.there() })
	if len(p.answered) > maxKnown {
		clear(p.answered)
	}
}
