// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Prober asks mounts. Its zero value serves. It may be used by several
// goroutines; passes follow one another. It remembers which file systems keep
// a thread of an earlier pass, and does not ask those again as long as they do:
// one Prober is to serve a whole program, so that there is at most one thread
// waiting for each. Each owner of targets has a share of the threads that may wait,
// and room for one is always left for each.
type Prober struct {
	// Deadline is how long a pass takes at most, with a few milliseconds for
	// each 1,000 targets on top; 0 is DefaultDeadline.
	Deadline time.Duration
	// Runner bounds the processes that ask; nil is one of the Prober's own.
	Runner *subprocess.Runner
	// Overdue, where set, is called during a pass for every question that has
	// not been answered for a while, when that has passed. The next question of
	// the same target is only asked when this one has been answered, and is
	// overdue at once. It must not block.
	Overdue func()

	init sync.Once
	turn chan struct{} // holds one value while a pass is on
	own  subprocess.Runner

	// One pass at a time uses these:

	// waiting is which thread waits for which file system since an earlier pass.
	waiting map[uint64]waiter
	// blocked is which thread waits since then on the way to a mount.
	blocked map[pathToMount]waiter
	// slow is which file systems did not answer in the last pass.
	slow map[uint64]bool
	// answered is which file systems have answered when they were asked last.
	answered map[uint64]bool
}

// Ask asks every target and gives their answers in the same order. It takes as
// long as the slowest answer does, and the deadline at most. It is not to be
// called inside mountns.Namespace.Do.
//
// If no process could be had, or it was lost before the deadline, the other targets
// are Unasked, and the error says why; the answers are valid all the same, as they
// are when ctx ends. A target whose Point is not absolute and
// clean makes an error without answers.
func (p *Prober) Ask(ctx context.Context, targets []Target) ([]Answer, error) {
	for i, t := range targets {
		if !path.IsAbs(t.Point) || path.Clean(t.Point) != t.Point {
			return nil, fmt.Errorf("probe target %d: point %q is not absolute and clean: %w", i, t.Point, sys.EINVAL)
		}
	}
	p.init.Do(func() {
		p.turn = make(chan struct{}, 1)
		p.waiting, p.blocked = map[uint64]waiter{}, map[pathToMount]waiter{}
		p.slow, p.answered = map[uint64]bool{}, map[uint64]bool{}
	})
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another pass: %w", context.Cause(ctx))
	}
	defer func() { <-p.turn }()
	s := p.newPass(targets)
	defer s.close()
	s.find()
	err := s.askAll(ctx)
	s.settle()
	s.recheck()
	return s.answers, err
}

func (p *Prober) runner() *subprocess.Runner { return cmp.Or(p.Runner, &p.own) }

func (p *Prober) deadline() time.Duration { return cmp.Or(p.Deadline, DefaultDeadline) }
