// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"sync"
	"time"
)

// The bounds of a pass. There are never more than maxProbingThreads+maxWaitingThreads threads
// that ask.
const (
	// maxProbingThreads is how many threads ask at once.
	maxProbingThreads = 16
	// maxWaitingThreads is how many more may have been waiting for longer than lateAfter. Beyond it, waiting threads
	// are not replaced, and the remaining questions are left out.
	maxWaitingThreads = 256
	// lateAfter is how long a thread counts as asking. A thread that waits longer is replaced.
	lateAfter = 25 * time.Millisecond
)

// threadPool bounds how many threads ask.
type threadPool struct {
	mu              sync.Mutex
	threadFree      *sync.Cond
	asking, waiting int
	threadLimit     func(owner string) int
	waitingByOwner  map[string]int // how many threads wait for file systems of an owner
}

// newPool has room say how many threads may wait for one owner.
func newPool(room func(owner string) int) *threadPool {
	p := &threadPool{threadLimit: room, waitingByOwner: map[string]int{}}
	p.threadFree = sync.NewCond(&p.mu)
	return p
}

// reserveThread waits until there may be one more thread that asks.
func (p *threadPool) reserveThread() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.asking >= maxProbingThreads {
		p.threadFree.Wait()
	}
	p.asking++
}

// releaseThread notes that a thread asks no more.
func (p *threadPool) releaseThread() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asking--
	p.threadFree.Signal()
}

// ownerIsFull reports whether as many threads as may be wait for file systems of an owner.
func (p *threadPool) ownerIsFull(owner string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waitingByOwner[owner] >= p.threadLimit(owner)
}

// parkThread notes that a thread has been waiting for long. If there are too many of these, it still counts as asking.
func (p *threadPool) parkThread(owner string) (parked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waitingByOwner[owner]++
	if p.waiting >= maxWaitingThreads {
		return false
	}
	p.waiting++
	p.asking--
	p.threadFree.Signal()
	return true
}

// endWait notes that a thread waits no more for a file system of the owner. A thread that was parked waits until it may ask again.
func (p *threadPool) endWait(owner string, parked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waitingByOwner[owner]--
	if !parked {
		return
	}
	for p.asking >= maxProbingThreads {
		p.threadFree.Wait()
	}
	p.waiting--
	p.asking++
}

// probeTurn is a thread's asking about one target.
type probeTurn struct {
	pool   *threadPool
	emit   func(v any) error
	target int
	owner  string
	thread int
	// handOver is called once where the way to the mount does not answer: the next caller need not wait for that.
	handOver func()

	mu           sync.Mutex
	timer        *time.Timer
	question     string
	onWayToMount bool // that is the way to the mount, the first question
	onWrite      bool // that is for the permission to write
	stat         Stat
	isLate       bool // for longer than lateAfter
	parked       bool
	handed       bool // handOver was called
}

// askWrite is askQuestion of the permission to write, after all else was answered.
func (t *probeTurn) askWrite(question string) {
	t.mu.Lock()
	t.onWrite = true
	t.mu.Unlock()
	t.askQuestion(question)
}

// endWrite notes the answer to askWrite.
func (t *probeTurn) endWrite() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onWrite = false
}

// reachMount notes that the lookup has reached the mount, with the attributes in the kernel's cache.
func (t *probeTurn) reachMount(st Stat) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stat = st
}

// askQuestion notes the present question.
func (t *probeTurn) askQuestion(question string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onWayToMount = t.onWayToMount && t.question == ""
	t.question = question
	switch {
	case t.isLate:
		t.sendProgress()
	case t.timer == nil:
		t.timer = time.AfterFunc(lateAfter, t.markLate)
	}
}

// markLate notes that the answer is late, and replaces the thread.
func (t *probeTurn) markLate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer == nil {
		return // answered at this moment
	}
	t.isLate = true
	t.sendProgress()
	t.parked = t.pool.parkThread(t.owner)
	if t.onWayToMount && t.handOver != nil {
		t.handed = true
		t.handOver()
	}
}

func (t *probeTurn) sendProgress() {
	o := overdue{Target: t.target, Question: t.question, Thread: t.thread, Way: t.onWayToMount, Write: t.onWrite, Stat: t.stat}
	_ = t.emit(reply{Overdue: &o}) // the parent is gone
}

// finish notes that every question has its answer.
func (t *probeTurn) finish() {
	t.mu.Lock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	parked, late := t.parked, t.isLate
	t.mu.Unlock()
	if late {
		t.pool.endWait(t.owner, parked)
	}
}

// wasHanded reports whether handOver was called.
func (t *probeTurn) wasHanded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.handed
}
