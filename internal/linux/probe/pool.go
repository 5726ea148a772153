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
	maxWaiting = 128
	// patience is how long a thread counts as asking. One that waits longer is
	// replaced.
	patience = 25 * time.Millisecond
)

// pool bounds how many threads ask.
type pool struct {
	mu              sync.Mutex
	free            *sync.Cond
	asking, waiting int
}

func newPool() *pool {
	p := &pool{}
	p.free = sync.NewCond(&p.mu)
	return p
}

// take waits until there may be one more thread that asks.
func (p *pool) take() {
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

// park says that a thread which asks has been waiting for long. It counts as
// asking still where there are too many of those.
func (p *pool) park() (parked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting >= maxWaiting {
		return false
	}
	p.waiting++
	p.asking--
	p.free.Signal()
	return true
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
	thread int

	mu       sync.Mutex
	timer    *time.Timer
	question string
	late     bool // for longer than patience
	parked   bool
}

// ask notes what is asked now.
func (t *turn) ask(question string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.question = question
	switch {
	case t.late:
		t.tell()
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
	t.tell()
	t.parked = t.pool.park()
}

func (t *turn) tell() {
	_ = t.emit(reply{Overdue: &overdue{Target: t.target, Question: t.question, Thread: t.thread}}) // nobody is left to tell
}

// end says that everything was answered.
func (t *turn) end() {
	t.mu.Lock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	parked := t.parked
	t.mu.Unlock()
	if parked {
		t.pool.unpark()
	}
}
