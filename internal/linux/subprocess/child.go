// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subprocess

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
)

// jobProcess is a process that does a job.
type jobProcess struct {
	job                string
	owner              string
	waitKeys           []string
	process            *os.Process
	toChild, fromChild *os.File // our ends of its pipes
	exited             chan struct{}
	state              *os.ProcessState // valid once exited is closed
	done               bool             // it has done its job; guarded by the Runner
}

// startProcess starts the process, for which there is room. A goroutine waits for its end from then on. After an error
// its room is free again.
func (r *Runner) startProcess(child *jobProcess) error {
	stdin, file, err := os.Pipe()
	if err != nil {
		r.removeChild(child)
		return err
	}
	defer stdin.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		file.Close()
		r.removeChild(child)
		return err
	}
	defer stdout.Close()
	child.toChild, child.fromChild = file, out
	started := make(chan error, 1)
	go r.runProcess(child, stdin, stdout, started)
	if err := <-started; err != nil {
		file.Close()
		out.Close()
		return err
	}
	return nil
}

// runProcess starts the process and waits for its end. The kernel takes the end of
// the thread that started it for its parent's, so this one is kept.
func (r *Runner) runProcess(child *jobProcess, stdin, stdout *os.File, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Its errors go where its answers go: a process that holds an end of our own
	// standard error keeps the reader of the other end waiting.
	p, err := os.StartProcess("/proc/self/exe", []string{childName, child.job}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{stdin, stdout, stdout}, Sys: sys.DiesWithParent(),
	})
	if err != nil {
		r.removeChild(child)
		started <- err
		return
	}
	child.process = p
	started <- nil
	child.state, _ = p.Wait() // it is our own child and nothing else waits for it
	r.removeChild(child)
	close(child.exited)
}

// giveUp kills the process; exchange then returns.
func (p *jobProcess) giveUp() {
	_ = p.process.Kill() // else it has ended
	_ = p.toChild.SetWriteDeadline(time.Now())
	_ = p.fromChild.SetReadDeadline(time.Now().Add(outputGrace))
}

var (
	errMissingEnd = errors.New("process ended before the job was done")
	errUnexpected = errors.New("process says what it should not")
)

// jobError is the error of the job itself.
type jobError struct{ text string }

func (e *jobError) Error() string { return e.text }

// exchange hands the process its input and hands on its answers, until it reports the end of the job.
func (p *jobProcess) exchange(input []byte, each func(json.RawMessage) error) error {
	defer p.fromChild.Close()
	go func() {
		_, _ = p.toChild.Write(input) // a job that reads no input reports that itself
		p.toChild.Close()
	}()
	lines := bufio.NewScanner(p.fromChild)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for lines.Scan() {
		var line outputLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("%w: %.400q", errUnexpected, lines.Bytes())
		}
		switch {
		case line.End && line.Error != "":
			return &jobError{line.Error}
		case line.End:
			return nil
		case each == nil:
			continue
		}
		if err := each(line.Value); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errMissingEnd
}

// resultOf turns the result of exchange into the error of Run.
func (p *jobProcess) resultOf(ctx context.Context, err error) error {
	var own *jobError
	if err == nil || errors.As(err, &own) {
		p.waitExit(ctx)
	}
	p.giveUp() // a process may not be able to end, even with its job done
	switch {
	case err == nil:
		return nil
	case own != nil:
		return fmt.Errorf("run job %q: %w", p.job, err)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, errMissingEnd) && p.waitExit(ctx):
		err = fmt.Errorf("%w: %v", err, p.state)
	}
	time.AfterFunc(endGrace, func() {
		select {
		case <-p.exited:
		default:
			// A process that cannot end will not use its memory again. The kernel refuses to release the memory of a
			// process that was not killed.
			_ = sys.ReleaseMemory(p.process.Pid) // else it keeps its memory
		}
	})
	return &LostError{Job: p.job, PID: p.process.Pid, Gone: p.exited, Err: err}
}

// waitExit waits for the end of the process, but not for long.
func (p *jobProcess) waitExit(ctx context.Context) bool {
	grace := time.NewTimer(endGrace)
	defer grace.Stop()
	select {
	case <-p.exited:
		return true
	case <-grace.C:
	case <-ctx.Done():
	}
	return false
}
