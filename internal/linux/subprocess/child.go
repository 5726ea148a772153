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

// child is a process that does a job.
type child struct {
	job     string
	owner   string
	waits   []string
	process *os.Process
	in, out *os.File // our ends of its pipes
	gone    chan struct{}
	state   *os.ProcessState // valid once gone is closed
	done    bool             // it has done its job; guarded by the Runner
}

// start starts a process. A goroutine waits for its end from then on.
func (r *Runner) start(ctx context.Context, o Options) (*child, error) {
	c := &child{job: o.Job, owner: o.Owner, waits: o.Waits, gone: make(chan struct{})}
	if err := r.acquire(ctx, c); err != nil {
		return nil, err
	}
	stdin, in, err := os.Pipe()
	if err != nil {
		r.removeChild(c)
		return nil, err
	}
	defer stdin.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		in.Close()
		r.removeChild(c)
		return nil, err
	}
	defer stdout.Close()
	c.in, c.out = in, out
	started := make(chan error, 1)
	go r.live(c, stdin, stdout, started)
	if err := <-started; err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	return c, nil
}

// live starts the process and waits for its end. The kernel takes the end of
// the thread that started it for its parent's, so this one is kept.
func (r *Runner) live(c *child, stdin, stdout *os.File, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Its errors go where its answers go: a process that holds an end of our own
	// standard error keeps the reader of the other end waiting.
	p, err := os.StartProcess("/proc/self/exe", []string{childName, c.job}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{stdin, stdout, stdout}, Sys: sys.DiesWithParent(),
	})
	if err != nil {
		r.removeChild(c)
		started <- err
		return
	}
	c.process = p
	started <- nil
	c.state, _ = p.Wait() // it is our own child and nothing else waits for it
	r.removeChild(c)
	close(c.gone)
}

// giveUp kills the process, and has converse return.
func (c *child) giveUp() {
	_ = c.process.Kill() // else it has ended
	_ = c.in.SetWriteDeadline(time.Now())
	_ = c.out.SetReadDeadline(time.Now().Add(lastWords))
}

var (
	errNoEnd      = errors.New("process ended before the job was done")
	errUnexpected = errors.New("process says what it should not")
)

// jobError is the error of the job itself.
type jobError struct{ text string }

func (e *jobError) Error() string { return e.text }

// converse hands the process its input and hands on what it answers, until it
// says that the job is done.
func (c *child) converse(input []byte, each func(json.RawMessage) error) error {
	defer c.out.Close()
	go func() {
		_, _ = c.in.Write(input) // a job that reads no input says so itself
		c.in.Close()
	}()
	lines := bufio.NewScanner(c.out)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("%w: %.400q", errUnexpected, lines.Bytes())
		}
		switch {
		case l.End && l.Error != "":
			return &jobError{l.Error}
		case l.End:
			return nil
		case each == nil:
			continue
		}
		if err := each(l.Value); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errNoEnd
}

// finish makes of the way in which converse ended what Run returns.
func (c *child) finish(ctx context.Context, err error) error {
	var own *jobError
	if err == nil || errors.As(err, &own) {
		c.wait(ctx)
	}
	c.giveUp() // also what has done its job may not be able to end
	switch {
	case err == nil:
		return nil
	case own != nil:
		return fmt.Errorf("run job %q: %w", c.job, err)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, errNoEnd) && c.wait(ctx):
		err = fmt.Errorf("%w: %v", err, c.state)
	}
	time.AfterFunc(endGrace, c.releaseMemory)
	return &LostError{Job: c.job, PID: c.process.Pid, Gone: c.gone, Err: err}
}

// releaseMemory takes from a process that cannot end what it will not use again. The
// kernel refuses it for one that was not killed.
func (c *child) releaseMemory() {
	select {
	case <-c.gone:
	default:
		_ = sys.ReleaseMemory(c.process.Pid) // else it keeps its memory
	}
}

// wait waits for the end of the process, but not for long.
func (c *child) wait(ctx context.Context) bool {
	grace := time.NewTimer(endGrace)
	defer grace.Stop()
	select {
	case <-c.gone:
		return true
	case <-grace.C:
	case <-ctx.Done():
	}
	return false
}
