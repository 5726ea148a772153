// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subprocess

import (
	"context"
	"encoding/json"
	"fmt"
)

// Begun is a process that was started for a job whose input is not known yet. Its owner calls Finish or Drop.
type Begun struct {
	runner *Runner
	child  *jobProcess
	ctx    context.Context // ends at the deadline
	end    func()          // releases ctx, and leaves the process alone
	used   bool
}

// Begin starts the process of a job, and has the errors of Run. The process takes some ten milliseconds to start, in which the caller can find out
// the input. Input and Each of the options do not count: Finish is given them.
func (r *Runner) Begin(ctx context.Context, options Options) (*Begun, error) {
	if !mainCalled.Load() {
		return nil, fmt.Errorf("run job %q: %w", options.Job, errNotPrepared)
	}
	if options.Deadline <= 0 {
		return nil, fmt.Errorf("run job %q: deadline %v is not more than 0", options.Job, options.Deadline)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, options.Deadline, ErrDeadline)
	child := &jobProcess{job: options.Job, owner: options.Owner, waitKeys: options.Waits, exited: make(chan struct{})}
	err := r.acquire(ctx, child)
	if err == nil {
		err = r.startProcess(child)
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("run job %q: %w", options.Job, err)
	}
	stop := context.AfterFunc(ctx, child.giveUp)
	return &Begun{runner: r, child: child, ctx: ctx, end: func() {
		stop()
		cancel()
	}}, nil
}

// Finish hands the process its input, hands on its answers, and returns as Run does.
func (b *Begun) Finish(input any, each func(json.RawMessage) error) error {
	text, err := encodeInput(input)
	if err != nil {
		b.Drop()
		return fmt.Errorf("run job %q: %w", b.child.job, err)
	}
	return b.finish(text, each)
}

func (b *Begun) finish(input []byte, each func(json.RawMessage) error) error {
	b.used = true
	defer b.end()
	err := b.child.exchange(input, each)
	defer b.runner.noteLeft(b.child, err == nil)
	return b.child.resultOf(b.ctx, err)
}

// Drop ends a process whose job is not wanted. It does nothing after Finish, nor if there is no process: b may be nil.
func (b *Begun) Drop() {
	if b == nil || b.used {
		return
	}
	b.used = true
	b.end()
	b.child.giveUp()
	b.child.toChild.Close()
	b.child.fromChild.Close()
	b.runner.noteLeft(b.child, false)
}
