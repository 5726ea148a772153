// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"sync"
	"time"
)

// The bounds of a pass. There are never more than maxAsking+maxWaiting threads
// that ask.
const (
	// maxAsking is how many threads ask at once.
	maxAsking = 16
	// maxWaiting is how many more may have been waiting for longer than patience.
	// When it is reached the threads that wait then are not replaced, so that
	// what has not been asked by then stays unasked.
	maxWaiting = 256
	// patience is how long a thread counts as asking. One that waits longer is
	// replaced.
	patience = 25 * time.Millisecond
)

// pool bounds how many threads ask.
type pool struct {
	mu              sync.Mutex
	free            *sync.Cond
	asking, waiting int
	room            func(owner string) int
	of              map[string]int // how many threads wait for file systems of an owner
}

// newPool has room say how many threads may wait for one owner.
func newPool(room func(owner string) int) *pool {
	p := &pool{room: room, of: map[string]int{}}
	p.free = sync.NewCond(&p.mu)
	return p
}

// reserveThread waits until there may be one more thread that asks.
func (p *pool) reserveThread() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.asking >= maxAsking {
		p.free.Wait()
	}
	p.asking++
}

// give says that a thread asks no more.
func (p *pool) give() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asking--
	p.free.Signal()
}

// full reports whether as many threads as may be wait for file systems of an owner.
func (p *pool) full(owner string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[owner] >= p.room(owner)
}

// park says that a thread which asks has been waiting for long. It counts as
// asking still where there are too many of those.
func (p *pool) park(owner string) (parked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[owner]++
	if p.waiting >= maxWaiting {
		return false
	}
	p.waiting++
	p.asking--
	p.free.Signal()
	return true
}

// answered says that a thread waits no more for a file system of the owner.
func (p *pool) answered(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[owner]--
}

// unpark waits until a thread that was parked may ask again.
func (p *pool) unpark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.asking >= maxAsking {
		p.free.Wait()
	}
	p.waiting--
	p.asking++
}

// turn is a thread's asking about one target.
type turn struct {
	pool   *pool
	emit   func(v any) error
	target int
	owner  string
	thread int
	// handOver is called once where the way to the mount does not answer: the next caller need not wait for that.
	handOver func()

	mu       sync.Mutex
	timer    *time.Timer
	question string
	way      bool // that is the way to the mount
	stat     Stat
	late     bool // for longer than patience
	parked   bool
	handed   bool // handOver was called
}

// lookUp is ask of the way to the mount.
func (t *turn) lookUp(question string) {
	t.mu.Lock()
	t.way = true
	t.mu.Unlock()
	t.ask(question)
}

// remember has come to the mount, and notes what the kernel remembers of it.
func (t *turn) remember(st Stat) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stat = st
}

// ask notes what is asked now.
func (t *turn) ask(question string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.way = t.way && t.question == ""
	t.question = question
	switch {
	case t.late:
		t.report()
	case t.timer == nil:
		t.timer = time.AfterFunc(patience, t.overdue)
	}
}

// overdue says so, and has the thread replaced.
func (t *turn) overdue() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer == nil {
		return // answered at this moment
	}
	t.late = true
	t.report()
	t.parked = t.pool.park(t.owner)
	if t.way && t.handOver != nil {
		t.handed = true
		t.handOver()
	}
}

func (t *turn) report() {
	o := overdue{Target: t.target, Question: t.question, Thread: t.thread, Way: t.way, Stat: t.stat}
	_ = t.emit(reply{Overdue: &o}) // the parent is gone
}

// end says that everything was answered.
func (t *turn) end() {
	t.mu.Lock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	parked, late := t.parked, t.late
	t.mu.Unlock()
	if late {
		t.pool.answered(t.owner)
	}
	if parked {
		t.pool.unpark()
	}
}

// wasHanded reports whether handOver was called.
func (t *turn) wasHanded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.handed
}
