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

	"kubediag.org/kubediag/internal/linux/disposable"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Job is what the process that asks does. It has to be among those that main
// gives to disposable.Main.
var Job = disposable.Job{Name: "probe", Run: work}

// work asks every question, and says what it hears as soon as it does.
func work(_ context.Context, in []byte, emit func(v any) error) error {
	var r request
	if err := json.Unmarshal(in, &r); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	// A thread that waits keeps its turn of the scheduler for a while.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), maxAsking))
	w := worker{pool: newPool(), emit: emit}
	if r.Bind {
		w.scratch, w.noScratch = sys.NewScratch() // before any thread copies what is open
	}
	w.all(r.Groups)
	return nil
}

// all asks one question of every group first, so that a file system which does
// not answer is waited for from early on, and then the others of those whose
// first was answered.
func (w *worker) all(groups [][]question) {
	var first, other sync.WaitGroup
	rest := make(chan []question, len(groups))
	for _, g := range groups {
		w.pool.take()
		first.Go(func() {
			defer w.pool.give()
			w.group(g[:1])
			rest <- g[1:]
		})
	}
	go func() {
		first.Wait()
		close(rest)
	}()
	for g := range rest {
		if len(g) == 0 {
			continue
		}
		w.pool.take()
		other.Go(func() {
			defer w.pool.give()
			w.group(g)
		})
	}
	other.Wait()
}

// worker asks.
type worker struct {
	pool      *pool
	emit      func(v any) error
	scratch   *sys.Scratch
	noScratch error // why there is none
}

// group asks questions about one file system on a thread that goes with
// everything it has opened.
func (w *worker) group(group []question) {
	err := sys.OnOwnFiles(func() error {
		for len(group) > 0 {
			q := &group[0]
			group = group[1:]
			a := asker{question: q, worker: w, turn: &turn{pool: w.pool, emit: w.emit, target: q.Target, thread: sys.ThreadID()}}
			a.answer.Target = q.Target
			err := a.run()
			_ = w.emit(reply{Answer: &a.answer}) // nobody is left to tell
			if errors.Is(err, errStranded) {
				return err
			}
		}
		return nil
	})
	for _, q := range group {
		a := Answer{Target: q.Target, State: Unasked, Evidence: []string{say("a thread to ask with", err)}}
		_ = w.emit(reply{Answer: &a}) // as above
	}
}
