// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subprocess

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/share"
)

// Runner has jobs done and bounds how many processes that makes. Its zero value
// serves. It may be used by several goroutines.
type Runner struct {
	// MaxLingering is how many processes there may be at once, including processes that were given up and do not end. 0
	// is 512, or 64 on kernels that leave such a process its memory. Each owner may have one more.
	MaxLingering int

	mu sync.Mutex
	// children are all that have not ended, and whether they were left behind.
	children map[*jobProcess]bool
	room     share.Room // of the children
}

// LostError reports that a process was given up. It was sent SIGKILL, and may still exist for as long as a file system
// keeps it.
type LostError struct {
	Job string
	PID int
	// Gone is closed when the process has ended and its number may be another's.
	Gone <-chan struct{}
	// Err is why it was given up: ErrDeadline, the error of the context or of Options.Each, or the wrong output or end
	// of the process.
	Err error
}

// Error is the job and the reason.
func (e *LostError) Error() string { return fmt.Sprintf("run job %q: %v", e.Job, e.Err) }

// Unwrap is the reason.
func (e *LostError) Unwrap() error { return e.Err }

// Run starts a process that does the job, and hands on its answers. It returns when the job is done, or at the
// deadline, or when ctx ends; then the process is killed, and the error is a *LostError. All answers until then have
// been handed on. ErrTooMany: nothing was started; a program that has not called Main starts nothing either. Any other
// error but a *LostError is the job's own, or the reason why no process could be started.
func (r *Runner) Run(ctx context.Context, options Options) error {
	input, err := encodeInput(options.Input)
	if err != nil {
		return fmt.Errorf("run job %q: %w", options.Job, err)
	}
	b, err := r.Begin(ctx, options)
	if err != nil {
		return err
	}
	return b.finish(input, options.Each)
}

// encodeInput is the input of a job as its process reads it.
func encodeInput(v any) ([]byte, error) {
	input, err := json.Marshal(v)
	if err == nil && len(input) > maxInput {
		err = fmt.Errorf("input has %d bytes, more than %d", len(input), maxInput)
	}
	return input, err
}

// Lingering is how many processes have been given up and have not ended yet.
func (r *Runner) Lingering() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, left := range r.children {
		if left {
			n++
		}
	}
	return n
}

// acquire makes room for a process. If a process with one of its names has done its job, it waits a little for the end
// of that process.
func (r *Runner) acquire(ctx context.Context, c *jobProcess) error {
	grace := time.NewTimer(doneGrace)
	defer grace.Stop()
	for {
		ending, err := r.tryAcquire(c)
		if ending == nil {
			return err
		}
		select {
		case <-ending.exited:
		case <-grace.C:
			return errWaiting
		case <-ctx.Done():
			return errWaiting
		}
	}
}

// tryAcquire makes room, or gives a process that has done its job and has one of the names.
func (r *Runner) tryAcquire(child *jobProcess) (ending *jobProcess, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, left := range r.children {
		if left && slices.ContainsFunc(child.waitKeys, func(what string) bool { return slices.Contains(other.waitKeys, what) }) {
			if other.done {
				return other, nil
			}
			return nil, errWaiting
		}
	}
	r.room.Places, r.room.PerNamespace = cmp.Or(r.MaxLingering, defaultMaxLingering), ownerShare
	if r.MaxLingering == 0 && sys.HasMemoryRelease.Probe() != nil {
		r.room.Places = maxUnreleasedLingering // a process that cannot end keeps its memory
	}
	if !r.room.Take(share.Owner{Namespace: child.owner}) {
		return nil, ErrTooMany
	}
	if r.children == nil {
		r.children = map[*jobProcess]bool{}
	}
	r.children[child] = false
	return nil, nil
}

// noteLeft notes that no caller waits for the process any more, and whether it has done its job.
func (r *Runner) noteLeft(c *jobProcess, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, there := r.children[c]; there {
		r.children[c], c.done = true, done
	}
}

// removeChild notes that the process has ended.
func (r *Runner) removeChild(c *jobProcess) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, there := r.children[c]; there {
		delete(r.children, c)
		r.room.Free(share.Owner{Namespace: c.owner})
	}
}

// A process that has done its job ends within a millisecond. endGrace is how long a caller waits for a process that
// does not, and outputGrace for the last output of a process that was killed.
const (
	endGrace    = 100 * time.Millisecond
	outputGrace = 10 * time.Millisecond
	// doneGrace is how long the next process with one of its names waits for its end, which takes its time on a busy
	// machine.
	doneGrace = 2 * time.Second
)
