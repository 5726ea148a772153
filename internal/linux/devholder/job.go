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
	"sync"
	"time"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/bounded"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Job is the part of a search that runs in a process that can be lost: it inspects processes, and searches for the
// layers of overlays. Main programs, and tests, hand it to subprocess.Main.
var Job = subprocess.Job{Name: "holders", Run: runJob}

const (
	jobDeadline = time.Minute
	// jobTimeout is when the job asks no more. Those that are left count as such that do not
	// answer.
	jobTimeout = 40 * time.Second
	// namespaceTimeout is how long the overlays of a mount namespace may take. Package procfs says when a process is given
	// up.
	namespaceTimeout = 2 * time.Second
	// maxUnansweredPerJob is how many one job gives up on before it asks no more. maxUnansweredInAll is how many
	// all jobs together may have given up on and wait for.
	maxUnansweredPerJob = 4
	maxUnansweredInAll  = 64
)

// The subjects of a job.
const (
	jobProcesses = "processes"
	jobThreads   = "threads" // that are no processes
	jobOverlays  = "overlays"
)

// jobOrder is the input of a job.
type jobOrder struct {
	Job   string
	Marks deviceMarks
	// Overlays are searched for in Namespaces, in this order.
	Overlays   []overlayMount      `json:",omitempty"`
	Namespaces []mountns.Namespace `json:",omitempty"`
	// KnownUnanswered are the keys for which an earlier job waits. MaxUnanswered is how many others this job may give
	// up on.
	KnownUnanswered []string `json:",omitempty"`
	MaxUnanswered   int
}

// deviceMarks are the numbers by which something on the device is recognised.
type deviceMarks struct {
	Devices, Superblocks []blockdev.Number
	UniqueIDs            map[uint64]blockdev.Number `json:",omitempty"`
	MountInfoIDs         map[int]blockdev.Number    `json:",omitempty"`
	// Overlay is whether one of the file systems is an overlay. Before Linux 6.8 the map of a process does not show it.
	Overlay bool `json:",omitempty"`
}

// jobOutput is one line of a job's output: one of these.
type jobOutput struct {
	Found   *foundFile      `json:",omitempty"`
	Overlay *overlayLayers  `json:",omitempty"`
	Stuck   *unansweredCall `json:",omitempty"`
	Tally   *jobCounts      `json:",omitempty"` // the last line
}

// foundFile is a file that a process has open. Its texts need not be UTF-8.
type foundFile struct {
	Kind         Kind
	PID          int
	Path, Detail []byte
	Number       blockdev.Number
	// Mount is the number of the mount by which the process has it; 0 if that is not one of the searched.
	Mount uint64 `json:",omitempty"`
}

// jobCounts counts the processes and files that were inspected, and those that could not be.
type jobCounts struct{ Tasks, Links, Denied, Unread, Stuck int }

// job is one job in its own process. Its threads share all that mu is for.
type job struct {
	jobOrder
	startTime   time.Time
	calls       bounded.Calls
	descriptors sys.Descriptors
	mapTexts    sync.Pool // *[]byte, room for memory maps: a look that is left behind keeps its own

	mu     sync.Mutex
	emit   func(v any) error
	failed error // of emit
	ended  bool  // no thread that was left behind may write
	tally  jobCounts
}

func runJob(ctx context.Context, in []byte, emit func(v any) error) error {
	j := job{emit: emit, startTime: time.Now()}
	if err := json.Unmarshal(in, &j.jobOrder); err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	look := map[string]func(context.Context) error{jobProcesses: j.findInProcesses, jobThreads: j.findInThreads, jobOverlays: j.findOverlays}[j.Job]
	if look == nil {
		return fmt.Errorf("read order: %q is not known", j.Job)
	}
	if err := look(ctx); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = true
	return j.emit(jobOutput{Tally: &j.tally})
}

// errUnanswered is returned for a process or namespace that does not answer in time, or is left out as others did not.
var errUnanswered = errors.New("does not answer")

// write writes a line of the output.
func (j *job) write(line jobOutput) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil && !j.ended {
		j.failed = j.emit(line)
	}
	return j.failed
}

// mayAsk reports whether the process or namespace of key is asked: not if an earlier one waits for it, or too many did not
// answer, or the time is over.
func (j *job) mayAsk(key string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.MaxUnanswered > 0 && !slices.Contains(j.KnownUnanswered, key) && time.Since(j.startTime) <= jobTimeout
}

// giveUp notes that the process or namespace of key does not answer.
func (j *job) giveUp(key string) error {
	j.mu.Lock()
	j.KnownUnanswered = append(j.KnownUnanswered, key)
	j.MaxUnanswered--
	j.mu.Unlock()
	return j.write(jobOutput{Stuck: &unansweredCall{key, process{os.Getpid(), started(os.Getpid())}}})
}

// callWithin makes a call that inspects the namespace of key, and gives up on it after the limit.
func callWithin[T any](ctx context.Context, j *job, key string, limit time.Duration, fn func() (T, error)) (T, error) {
	var none T
	if !j.mayAsk(key) {
		return none, errUnanswered
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	value, err := bounded.Do(ctx, &j.calls, bounded.Call{Key: key}, fn)
	if !errors.Is(err, bounded.ErrNoAnswer) {
		return value, err
	}
	return none, cmp.Or(j.giveUp(key), errUnanswered)
}

// runJob runs a job for the search, and adds its output to the report.
func (s *holderSearch) runJob(ctx context.Context, o jobOrder, overlays []*searchedOverlay) error {
	o.KnownUnanswered = jobs.waitFor()
	o.MaxUnanswered = min(maxUnansweredPerJob, maxUnansweredInAll-len(o.KnownUnanswered))
	each := func(text json.RawMessage) error {
		var line jobOutput
		if err := json.Unmarshal(text, &line); err != nil {
			return err
		}
		s.addLine(line, overlays)
		return nil
	}
	begun := s.begun
	if s.begun = nil; begun == nil {
		var err error
		if begun, err = cmp.Or(s.runner, &subprocess.Runner{}).Begin(ctx, jobOptions()); err != nil {
			return cmp.Or(ctx.Err(), err)
		}
	}
	err := begun.Finish(o, each)
	return cmp.Or(ctx.Err(), err)
}

// jobOptions are those of the process for a job.
func jobOptions() subprocess.Options {
	return subprocess.Options{Job: Job.Name, Deadline: jobDeadline, Owner: "holders"}
}

// addLine adds one line of the output to the report.
func (s *holderSearch) addLine(line jobOutput, overlays []*searchedOverlay) {
	l := &s.report.Coverage
	switch {
	case line.Found != nil:
		f := line.Found
		s.addHolder(Holder{Kind: f.Kind, PIDs: []int{f.PID}, Through: s.byID[f.Mount], Path: string(f.Path), Detail: string(f.Detail)})
		if s.busyProven = true; f.Kind != RawOpen {
			s.markExplained(f.Number)
		}
	case line.Overlay != nil:
		overlay := overlays[line.Overlay.Index]
		overlay.allLayersFound, overlay.layerUnknown = line.Overlay.Placed, overlay.layerUnknown || line.Overlay.Unclear
		if line.Overlay.Missing != nil {
			overlay.missing = string(line.Overlay.Missing)
		}
		for _, layer := range line.Overlay.On {
			s.markExplained(layer.Number)
			s.addHolder(Holder{Kind: OverlayLayer, Mount: overlay.fs.Mount, Path: overlay.fs.Mount.Point,
				Detail: "its layer " + string(layer.Name) + " is on the device"})
		}
	case line.Stuck != nil:
		jobs.note(*line.Stuck)
	case line.Tally != nil:
		t := line.Tally
		l.Tasks, l.Links, l.Unread, l.Unanswered = l.Tasks+t.Tasks, l.Links+t.Links, l.Unread+t.Unread, l.Unanswered+t.Stuck
		l.Denied = max(l.Denied, t.Denied)
	}
}
