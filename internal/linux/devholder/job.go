// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/bounded"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Job is what a Finder has done in a process that can be lost: it looks into processes, and for
// the layers of overlays. Main programs, and tests, hand it to subprocess.Main.
var Job = subprocess.Job{Name: "holders", Run: runJob}

const (
	jobDeadline = time.Minute
	// jobTime is when the job asks no more. Those that are left count as such that do not
	// answer.
	jobTime = 40 * time.Second
	// taskLimit is how long some links of a process, or its memory map, may take, and spaceLimit
	// the overlays of a mount namespace.
	taskLimit  = 500 * time.Millisecond
	spaceLimit = 2 * time.Second
	// maxStuck is how many one job gives up on before it asks no more, and maxLeft how many
	// all jobs together may have given up on and wait for.
	maxStuck = 4
	maxLeft  = 64
)

// The subjects of a job.
const (
	ofProcesses = "processes"
	ofThreads   = "threads" // that are no processes
	ofOverlays  = "overlays"
)

// order is what a job is told.
type order struct {
	Of    string
	Marks marks
	// Overlays are looked for in Spaces, in this order.
	Overlays []mounted           `json:",omitempty"`
	Spaces   []mountns.Namespace `json:",omitempty"`
	// Known are the keys of those that an earlier job waits for. Most is how many others this one may
	// give up on.
	Known []string `json:",omitempty"`
	Most  int
}

// marks are the numbers by which something on the device is recognised.
type marks struct {
	Devices, Super []blockdev.Number
	Unique         map[uint64]blockdev.Number `json:",omitempty"`
	Reused         map[int]blockdev.Number    `json:",omitempty"`
}

// said is one line of what a job says: one of these.
type said struct {
	Found   *found     `json:",omitempty"`
	Overlay *layered   `json:",omitempty"`
	Stuck   *stuck     `json:",omitempty"`
	Tally   *jobCounts `json:",omitempty"` // the last line
}

// found is something that a process has open. Its texts need not be UTF-8.
type found struct {
	Kind         Kind
	PID          int
	Path, Detail []byte
	Number       blockdev.Number
}

// jobCounts counts what was looked into, and what could not be.
type jobCounts struct{ Tasks, Links, Denied, Unread, Stuck int }

// job is one job in its own process.
type job struct {
	order
	emit        func(v any) error
	began       time.Time
	calls       bounded.Calls
	tally       jobCounts
	descriptors sys.Descriptors
	buf         []byte // for memory maps
}

func runJob(ctx context.Context, in []byte, emit func(v any) error) error {
	j := job{emit: emit, began: time.Now()}
	if err := json.Unmarshal(in, &j.order); err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	look := map[string]func(context.Context) error{ofProcesses: j.processes, ofThreads: j.threads, ofOverlays: j.overlays}[j.Of]
	if look == nil {
		return fmt.Errorf("read order: %q is not known", j.Of)
	}
	if err := look(ctx); err != nil {
		return err
	}
	return j.emit(said{Tally: &j.tally})
}

// errStuck is returned for what does not answer in time, or is not asked as others did not.
var errStuck = errors.New("does not answer")

// ask makes a call that looks at what key names, and gives up on that after the limit.
func ask[T any](ctx context.Context, j *job, key string, limit time.Duration, fn func() (T, error)) (T, error) {
	var none T
	if j.Most <= 0 || slices.Contains(j.Known, key) || time.Since(j.began) > jobTime {
		return none, errStuck
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	value, err := bounded.Do(ctx, &j.calls, bounded.Call{Key: key}, fn)
	if !errors.Is(err, bounded.ErrNoAnswer) {
		return value, err
	}
	j.Known = append(j.Known, key)
	j.Most--
	own := process{os.Getpid(), started(os.Getpid())}
	return none, cmp.Or(j.emit(said{Stuck: &stuck{key, own}}), errStuck)
}

// runJob has a job done for the search, and takes in what it says.
func (s *search) runJob(ctx context.Context, o order, overlays []*overlay) error {
	o.Known = jobs.waitFor()
	o.Most = min(maxStuck, maxLeft-len(o.Known))
	err := cmp.Or(s.runner, &subprocess.Runner{}).Run(ctx, subprocess.Options{
		Job: Job.Name, Input: o, Deadline: jobDeadline, Owner: "holders",
		Each: func(text json.RawMessage) error {
			var line said
			if err := json.Unmarshal(text, &line); err != nil {
				return err
			}
			s.addLine(line, overlays)
			return nil
		},
	})
	return cmp.Or(ctx.Err(), err)
}

// addLine takes in one line.
func (s *search) addLine(line said, overlays []*overlay) {
	l := &s.report.Looked
	switch {
	case line.Found != nil:
		f := line.Found
		s.add(Holder{Kind: f.Kind, PIDs: []int{f.PID}, Path: string(f.Path), Detail: string(f.Detail)})
		if s.proven = true; f.Kind != RawOpen {
			s.place(f.Number)
		}
	case line.Overlay != nil:
		s.takeLayers(overlays[line.Overlay.Index], line.Overlay)
	case line.Stuck != nil:
		jobs.note(*line.Stuck)
	case line.Tally != nil:
		t := line.Tally
		l.Tasks, l.Links, l.Unread, l.Stuck = l.Tasks+t.Tasks, l.Links+t.Links, l.Unread+t.Unread, l.Stuck+t.Stuck
		l.Denied = max(l.Denied, t.Denied)
	}
}
