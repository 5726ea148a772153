// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package subprocess runs work that may hang in a process that can be lost. A
// thread that waits for a file system which does not answer cannot always be
// ended, not even by SIGKILL; a process that has such a thread can be left
// behind.
//
// The process is this program once more. It calls Main first of all, which does the job. It inherits only a pipe for
// its input and a pipe for its answers from its parent. It dies with its parent, and is killed at the deadline. No
// caller waits for it then. A process that does not end is counted, and loses its memory if the kernel can do that
// (5.15). The number of these is bounded, in all and for each owner.
//
// It starts no other programs and knows nothing about the work. It rests on
// pipe(7), and on PR_SET_PDEATHSIG of prctl(2).
package subprocess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// The reasons for which a job is given up, or not begun.
var (
	// ErrDeadline: the job did not end in time.
	ErrDeadline = errors.New("job not done by its deadline")
	// ErrTooMany: as many processes as there may be are there already. The job
	// was not begun.
	ErrTooMany = errors.New("too many processes do not end")
	// errWaiting: a process that was given up still waits for one of Options.Waits.
	// The job was not begun. It is an ErrTooMany.
	errWaiting = fmt.Errorf("%w: one still waits for the same", ErrTooMany)
	// errNotPrepared: this program has not called Main, so its processes cannot do a job.
	errNotPrepared = errors.New("program does no jobs")
)

// defaultMaxLingering is how many processes a Runner has at once where nothing
// else is said.
const defaultMaxLingering = 512

// maxUnreleasedLingering is the same on kernels that leave a process which cannot end its
// memory (before 5.15).
const maxUnreleasedLingering = 64

// ownerShare is which part of the room that is left the processes of one owner may
// have, and one process in any case.
const ownerShare = 8

// Job is work that a process of its own can do.
type Job struct {
	// Name is the name in Options.Job.
	Name string
	// Run does the work in that process. in is Options.Input as JSON; emit sends
	// v, as JSON of at most 1 MiB, to Options.Each, and may be called by several
	// goroutines. The process ends as soon as Run returns. The error's text goes to
	// the caller of Runner.
	Run func(ctx context.Context, in []byte, emit func(v any) error) error
}

// Options describe the job to do.
type Options struct {
	// Job is the name of one of the jobs that Main was given.
	Job string
	// Input is the input of the job, as JSON.
	Input any
	// Deadline is how long it may take, from the start of the process on. It
	// must be more than 0.
	Deadline time.Duration
	// Each is called with everything that the job emits, in that order, one
	// after another and before Run returns. Its error ends the job.
	Each func(json.RawMessage) error
	// Owner, such as a pod, is charged for the process: the processes of one owner take no room from those of others.
	// Empty: no owner.
	Owner string
	// Waits names the things that the job may wait for, such as a file system. While a process that was given up
	// exists, no other process with one of its names is started.
	Waits []string
}
