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

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
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
	// Looks is when a file system that does not answer is judged, and when it is asked again.
	Looks Looks
	// Known, if set, returns the mount table of a target's namespace that was read a short time before, nil if none was. Mounts
	// are found in it, and in a table of its own time after they were asked: an answer is of a mount that was there both times.
	Known func(mountns.Namespace) *mountinfo.Table
	// Overdue, if set, is called during a pass for every question whose answer is late, once it is. The next question
	// of the same target follows only after the answer, and is overdue at once. Overdue must not block.
	Overdue func()

	init      sync.Once
	passLock  chan struct{} // holds one value while a pass is on
	ownRunner subprocess.Runner

	// One pass at a time uses these:

	// waitingThreads are the threads that wait since an earlier pass, by file system.
	waitingThreads map[uint64]waitingThread
	// blockedWays are the threads that wait since then on the way to a mount.
	blockedWays map[pathToMount]waitingThread
	// silences has the file systems that did not answer their last question.
	silences map[uint64]silence
	// answeringFileSystems are the file systems that answered their last question.
	answeringFileSystems map[uint64]bool
}

// Looks is when a file system that does not answer is judged.
type Looks int

// The ways to judge.
const (
	// EachPass judges by itself.
	EachPass Looks = iota
	// OneLook is for one look at a node: a file system that did not answer is not asked again, so that all questions of the look wait for it once.
	OneLook
	// TwoLooks is for those who look for ever: a file system is Silent until a pass that begins secondLook after that has no answer either.
	TwoLooks
)

// Ask asks every target and gives their answers in the same order. It takes as
// long as the slowest answer does, and the deadline at most. It is not to be
// called inside mountns.Namespace.Do.
//
// If no process could be had, or it was lost before the deadline, the other targets are NotProbed, and the error is the
// reason. The answers are valid all the same, also when ctx ends. A target whose Point is not absolute and clean makes
// an error without answers.
func (p *Prober) Ask(ctx context.Context, targets []Target) ([]Answer, error) {
	for i, t := range targets {
		if !path.IsAbs(t.Point) || path.Clean(t.Point) != t.Point {
			return nil, fmt.Errorf("probe target %d: point %q is not absolute and clean: %w", i, t.Point, sys.EINVAL)
		}
	}
	p.init.Do(func() {
		p.passLock = make(chan struct{}, 1)
		p.waitingThreads, p.blockedWays = map[uint64]waitingThread{}, map[pathToMount]waitingThread{}
		p.silences, p.answeringFileSystems = map[uint64]silence{}, map[uint64]bool{}
	})
	select {
	case p.passLock <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another pass: %w", context.Cause(ctx))
	}
	defer func() { <-p.passLock }()
	s := p.newPass(targets)
	defer s.close()
	s.findMounts()
	s.groupByFileSystem()
	err := s.askAll(ctx)
	for _, g := range s.groups {
		s.settleGroup(g)
	}
	for i := range s.answers {
		if s.answers.awaits(i) {
			s.answers.setState(i, NotProbed, 0, fmt.Sprintf("not asked: there was no time or no thread left within %v", p.deadlineOrDefault()))
		}
	}
	s.recheckMounts()
	return s.answers, err
}

func (p *Prober) deadlineOrDefault() time.Duration { return cmp.Or(p.Deadline, DefaultDeadline) }

// Twice asks by a Prober that has TwoLooks, and asks a second time if a file system was silent for the first time: for callers who want a
// verdict now. Other callers of the Prober go on meanwhile.
type Twice struct{ Prober *Prober }

// Ask is that of the Prober. No answer is Silent, unless ctx ends or another mount takes the place.
func (t Twice) Ask(ctx context.Context, targets []Target) ([]Answer, error) {
	answers, err := t.Prober.Ask(ctx, targets)
	var silent []Target
	var at []int
	for i, a := range answers {
		if a.State == Silent {
			silent, at = append(silent, targets[i]), append(at, i)
		}
	}
	if len(silent) == 0 || err != nil {
		return answers, err
	}
	wait := time.NewTimer(secondLook)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return answers, fmt.Errorf("wait for a second look: %w", context.Cause(ctx))
	}
	second, err := t.Prober.Ask(ctx, silent)
	for n, a := range second {
		a.Target = at[n]
		answers[at[n]] = a
	}
	return answers, err
}

// AskRoot asks the root of a mount that the caller has open, with the questions
// of a pass. It waits as long as the file system does: only a process that can
// be lost may call it. The answer has no ID.
func AskRoot(root *sys.FD) Answer {
	w := &worker{pool: newPool(func(string) int { return 1 }), emit: func(any) error { return nil }}
	w.pool.reserveThread()
	defer w.pool.releaseThread()
	a := targetProbe{question: &question{}, worker: w, turn: &probeTurn{pool: w.pool, emit: w.emit, thread: sys.ThreadID()}}
	a.askStat(root, rootName)
	a.turn.finish()
	return a.answer
}
