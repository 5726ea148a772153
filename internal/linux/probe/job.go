// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Job is the job of the process that asks. Main has to hand it to subprocess.Main.
var Job = subprocess.Job{Name: "probe", Run: runProbes}

// runProbes asks every question, and passes on each answer at once.
func runProbes(_ context.Context, in []byte, emit func(v any) error) error {
	var r request
	if err := json.Unmarshal(in, &r); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	// A thread that waits keeps its turn of the scheduler for a while.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), maxProbingThreads))
	w := worker{pool: newPool(r.threadLimit), emit: emit}
	if r.Bind {
		w.scratch, w.scratchError = sys.NewScratch() // before any thread copies the open files
	}
	w.askAll(r.Groups)
	return nil
}

// threadLimit is how many threads may wait for file systems of an owner.
func (r *request) threadLimit(owner string) int {
	if n, ok := r.Room[owner]; ok {
		return n
	}
	return r.RoomElse
}

// askAll asks one question of every group first, so that the wait for a file system that does not answer begins early.
// Then it asks the others of a group, if the first was answered, or if the way to the first does not answer.
func (w *worker) askAll(groups [][]question) {
	var first, other sync.WaitGroup
	rest := make(chan []question, len(groups))
	for _, g := range groups {
		w.pool.reserveThread()
		first.Go(func() {
			defer w.pool.releaseThread()
			if handOver := func([]question) { rest <- g[1:] }; !w.askGroup(g[:1], handOver) {
				rest <- g[1:]
			}
		})
	}
	go func() {
		first.Wait()
		close(rest)
	}()
	var ask func(g []question)
	ask = func(g []question) {
		if len(g) == 0 {
			return
		}
		other.Go(func() {
			w.pool.reserveThread()
			defer w.pool.releaseThread()
			w.askGroup(g, ask)
		})
	}
	for g := range rest {
		ask(g)
	}
	other.Wait()
}

// worker asks.
type worker struct {
	pool         *threadPool
	emit         func(v any) error
	scratch      *sys.Scratch
	scratchError error // the reason why it is nil
}

// askGroup asks questions about one file system on a thread that goes with
// everything it has opened. If the way to a mount does not answer, it hands over the
// questions that are left, and returns true.
func (w *worker) askGroup(group []question, handOver func(left []question)) (handed bool) {
	err := sys.WithOwnFDTable(func() error {
		for len(group) > 0 && !handed {
			q := &group[0]
			group = group[1:]
			if w.pool.ownerIsFull(q.Owner) {
				w.declineQuestion(q, "not asked: as many file systems of "+q.Owner+" as may be do not answer")
				continue
			}
			left := group
			a := targetProbe{question: q, worker: w, turn: &probeTurn{
				pool: w.pool, emit: w.emit, target: q.Target, owner: q.Owner, thread: sys.ThreadID(), handOver: func() { handOver(left) },
				onWayToMount: true,
			}}
			a.answer.Target = q.Target
			err := a.probeTarget()
			handed = a.turn.wasHanded()
			_ = w.emit(reply{Answer: &a.answer}) // the parent is gone
			if errors.Is(err, errStranded) {
				return err
			}
		}
		return nil
	})
	if handed {
		return true
	}
	for _, q := range group {
		w.declineQuestion(&q, describeError("a thread to ask with", err))
	}
	return false
}

// declineQuestion reports why a question was left out.
func (w *worker) declineQuestion(q *question, why string) {
	a := Answer{Target: q.Target, State: NotProbed, Evidence: []string{why}}
	_ = w.emit(reply{Answer: &a}) // as above
}
