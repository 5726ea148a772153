// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/share"
)

// The bounds of the threads that wait since earlier passes.
const (
	// maxWaiters is how many threads may wait in all. Beyond it, file systems that answered their last question have no
	// more than the share of their owner either.
	maxWaiters = 512
	// maxUnreleasedWaiters is the same on kernels that do not give back the memory of a process which was killed and
	// cannot end (before 5.15): some 5 MiB each.
	maxUnreleasedWaiters = 32
	// ownerShare is which part of the room that is left one owner may have.
	ownerShare = 8
	// unboundedRoom is the room of those whom only the number of threads bounds.
	unboundedRoom = 1 << 30
	// maxRememberedAnswers bounds the file systems that are remembered as answering.
	maxRememberedAnswers = 1 << 16
)

// threadRoom is how many threads may wait, as the waiters of earlier passes leave it. The share of an owner becomes
// smaller with the room that is left, and is never less than one thread: so no owner takes all of it, and no owner is
// left without.
type threadRoom struct {
	remaining        int // in all
	remainingByOwner map[string]int
}

// newRoom counts the waiting threads.
func (p *Prober) newRoom() *threadRoom {
	r := &threadRoom{remaining: maxWaiters, remainingByOwner: map[string]int{}}
	if sys.HasMemoryRelease.Probe() != nil {
		r.remaining = maxUnreleasedWaiters
	}
	note := func(w waitingThread) {
		r.remaining--
		r.remainingByOwner[w.owner]++
	}
	for _, w := range p.waitingThreads {
		note(w)
	}
	for _, w := range p.blockedWays {
		note(w)
	}
	return r
}

// requestForAnswering is the room for file systems that answered their last question.
func (r *threadRoom) requestForAnswering() request {
	if r.remaining > 0 {
		return request{RoomElse: unboundedRoom}
	}
	return r.requestForOthers()
}

// requestForOthers is the room for all others. Questions without an owner have no bound.
func (r *threadRoom) requestForOthers() request {
	most := share.Part(r.remaining, ownerShare)
	left := map[string]int{"": unboundedRoom}
	for owner, n := range r.remainingByOwner {
		if owner != "" {
			left[owner] = max(0, most-n)
		}
	}
	return request{Room: left, RoomElse: most}
}
