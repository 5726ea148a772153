// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subprocess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// childName is the name of a process that does a job.
const childName = "kubediag-job"

// The bounds of the messages between the two processes, in bytes.
const (
	maxInput = 32 << 20
	maxLine  = 1<<20 + 64
)

// outputLine is a line that the job's process writes, with a line feed at its end.
type outputLine struct {
	Value json.RawMessage `json:"value,omitempty"`
	End   bool            `json:"end,omitempty"` // the job is done, and this the last line
	Error string          `json:"error,omitempty"`
}

// mainCalled: Main was called. A program that does not call it would start itself again and again.
var mainCalled atomic.Bool

// Main does a job and exits, in a process that a Runner started. In any other
// it returns at once. It has to be called before anything else: by main, and by
// TestMain in tests.
func Main(jobs ...Job) {
	mainCalled.Store(true)
	if len(os.Args) != 2 || os.Args[0] != childName {
		return
	}
	out := &lineSender{w: os.Stdout}
	err := performJob(jobs, os.Args[1], os.Stdin, out)
	last := outputLine{End: true}
	if err != nil {
		last.Error = err.Error()
	}
	if out.sendLine(last) != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// performJob does the job of that name.
func performJob(jobs []Job, name string, in io.Reader, out *lineSender) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	for _, job := range jobs {
		if job.Name != name {
			continue
		}
		input, err := io.ReadAll(io.LimitReader(in, maxInput+1))
		if err != nil {
			return fmt.Errorf("read input: %w", err)
		}
		return job.Run(context.Background(), input, out.sendValue)
	}
	return fmt.Errorf("find job %q: not among those of this program", name)
}

// lineSender writes lines, each as a whole.
type lineSender struct {
	mu sync.Mutex
	w  io.Writer
}

var errTooLong = errors.New("more than 1 MiB")

func (s *lineSender) sendValue(v any) error {
	value, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return s.sendLine(outputLine{Value: value})
}

func (s *lineSender) sendLine(l outputLine) error {
	text, err := json.Marshal(l)
	if err == nil && len(text) >= maxLine {
		err = errTooLong
	}
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, err = s.w.Write(append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}
