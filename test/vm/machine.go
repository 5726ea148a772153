// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/test/vm/wire"
)

// Machine is a virtual machine that runs.
type Machine struct {
	dir     string
	held    *os.File // the lock of dir
	release string
	cmd     *exec.Cmd
	console consoleLog
	port    *os.File
	ended   chan struct{} // closed when qemu has ended
	hello   chan wire.Hello

	mu    sync.Mutex
	out   *gob.Encoder
	last  uint64
	calls map[uint64]*call // nil: the machine is gone
}

// call is a program that runs in the guest.
type call struct {
	out  io.Writer
	done chan wire.Answer
}

// ErrGone says that the machine has ended, or was killed, while it was needed.
var ErrGone = errors.New("virtual machine is gone")

// ExitError says how a program in the guest ended that was not well.
type ExitError struct {
	Status int    // -1: a signal ended it, or it was never started
	Failed string // why, where it was not of the program's own will
	Output []byte // the end of it, where Run has collected it
}

// Error returns the status and the end of the output.
func (e *ExitError) Error() string {
	said := e.Failed
	if said == "" {
		said = fmt.Sprintf("exit status %d", e.Status)
	}
	return strings.TrimSpace(fmt.Sprintf("%s\n%s", said, e.Output[max(0, len(e.Output)-maxOutput):]))
}

// Command is a program to be run in the guest.
type Command struct {
	Args  []string
	Dir   string
	Env   []string      // added to the guest's own
	Out   io.Writer     // receives standard output and standard error as they come; nil: neither
	Limit time.Duration // after which the program is ended, with all of its process group; 0: none
}

// start starts qemu, which dies with us, and listens to it.
func (m *Machine) start(program string, args []string) error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make socket pair: %w", err)
	}
	theirs := os.NewFile(uintptr(ends[1]), "guest")
	defer theirs.Close()
	if err := unix.SetNonblock(ends[0], true); err != nil {
		return err
	}
	m.port, m.out = os.NewFile(uintptr(ends[0]), "host"), nil
	m.out = gob.NewEncoder(m.port)
	m.cmd = exec.Command(program, args...)
	m.cmd.ExtraFiles = []*os.File{theirs}
	m.cmd.Stdout, m.cmd.Stderr = &m.console, &m.console
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	m.ended, m.hello = make(chan struct{}), make(chan wire.Hello, 1)
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the kernel kills qemu when the thread that started it ends
		err := m.cmd.Start()
		started <- err
		if err == nil {
			_ = m.cmd.Wait() // the console says how it ended
			close(m.ended)
		}
	}()
	if err := <-started; err != nil {
		m.cmd = nil
		return fmt.Errorf("start qemu: %w", err)
	}
	go m.listen()
	return nil
}

// listen hands on what the guest says, until it says no more.
func (m *Machine) listen() {
	in := gob.NewDecoder(m.port)
	var h wire.Hello
	if err := in.Decode(&h); err == nil {
		m.hello <- h
		for {
			var a wire.Answer
			if err := in.Decode(&a); err != nil {
				break
			}
			m.mu.Lock()
			c := m.calls[a.ID]
			if a.Done {
				delete(m.calls, a.ID)
			}
			m.mu.Unlock()
			if c != nil && len(a.Output) > 0 && c.out != nil {
				_, _ = c.out.Write(a.Output)
			}
			if c != nil && a.Done {
				c.done <- a
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.calls {
		close(c.done)
	}
	m.calls = nil
}

// greet waits until the guest is in place.
func (m *Machine) greet(ctx context.Context, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case h := <-m.hello:
		if h.Failed != "" {
			return m.fault("boot kernel %s: the guest could not prepare itself: %s", m.release, h.Failed)
		}
		if h.Release != m.release {
			return m.fault("boot kernel %s: it is %s that runs", m.release, h.Release)
		}
		return nil
	case <-m.ended:
		err := m.fault("boot kernel %s: qemu ended: %s", m.release, m.cmd.ProcessState)
		status, ok := m.cmd.ProcessState.Sys().(syscall.WaitStatus)
		if ok && status.Signal() == syscall.SIGSEGV || strings.Contains(m.Console(), "Kernel panic - not syncing: Fatal exception") {
			err = errors.Join(err, errCrashed)
		}
		return err
	case <-timer.C:
		return m.fault("boot kernel %s: not ready after %s", m.release, limit)
	case <-ctx.Done():
		return m.fault("boot kernel %s: %v", m.release, context.Cause(ctx))
	}
}

// errCrashed: qemu has ended by a fault of its own, or the kernel has. Both were seen at boots when each emulated processor
// had a thread of its own.
var errCrashed = errors.New("qemu has crashed, or the kernel in it")

// fault is an error with the last lines of the console.
func (m *Machine) fault(format string, args ...any) error {
	return fmt.Errorf(format+"\nthe end of the console:\n%s", append(args, m.console.end(console))...)
}

// Release is that of the kernel, as uname -r has it.
func (m *Machine) Release() string { return m.release }

// Console is the end of what the console showed, at most 256 KiB.
func (m *Machine) Console() string { return m.console.end(tail) }

// Run runs a program in the guest and gives what it has printed. If it ends with another status than 0, the error is an
// *ExitError.
func (m *Machine) Run(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	err := m.Do(ctx, Command{Args: args, Out: &out})
	var exit *ExitError
	if errors.As(err, &exit) {
		exit.Output = out.Bytes()
	}
	return out.String(), err
}

// silence is how long a guest may take to say that a program was ended at its limit. One whose kernel is stuck never does.
const silence = 30 * time.Second

// Do runs a program in the guest. When ctx ends it is left to itself: close the machine, or set a limit. A guest that does not answer
// soon after that limit has failed.
func (m *Machine) Do(ctx context.Context, c Command) error {
	if c.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Limit+silence, fmt.Errorf("no answer %s after its limit of %s", silence, c.Limit))
		defer cancel()
	}
	running := &call{out: c.Out, done: make(chan wire.Answer, 1)}
	m.mu.Lock()
	if m.calls == nil {
		m.mu.Unlock()
		return m.gone(c.Args)
	}
	m.last++
	id := m.last
	m.calls[id] = running
	err := m.out.Encode(wire.Call{ID: id, Args: c.Args, Dir: c.Dir, Env: c.Env, Limit: c.Limit})
	m.mu.Unlock()
	if err != nil {
		return errors.Join(err, m.gone(c.Args))
	}
	select {
	case a, ok := <-running.done:
		switch {
		case !ok:
			return m.gone(c.Args)
		case a.Status != 0 || a.Failed != "":
			return &ExitError{Status: a.Status, Failed: a.Failed}
		}
		return nil
	case <-ctx.Done():
		m.mu.Lock()
		delete(m.calls, id)
		m.mu.Unlock()
		return m.fault("run %q in the guest: %v", c.Args, context.Cause(ctx))
	}
}

func (m *Machine) gone(args []string) error {
	return fmt.Errorf("run %q: %w\nthe end of the console:\n%s", args, ErrGone, m.console.end(console))
}

// Wait waits until the machine has ended by itself, as after a reboot.
func (m *Machine) Wait(ctx context.Context) error {
	select {
	case <-m.ended:
		return nil
	case <-ctx.Done():
		return m.fault("wait for the end of the machine: %v", context.Cause(ctx))
	}
}

// Kill ends the machine as a power cut does: what it had not written to its disks is lost.
func (m *Machine) Kill() {
	if m.cmd != nil {
		_ = m.cmd.Process.Kill() // it may have ended
		<-m.ended
	}
}

// Close kills the machine and removes its files. Its Disks stay.
func (m *Machine) Close() error {
	m.Kill()
	if m.port != nil {
		m.port.Close()
	}
	err := os.RemoveAll(m.dir)
	m.held.Close()
	return err
}

// consoleLog keeps the end of what is written to it.
type consoleLog struct {
	mu   sync.Mutex
	text []byte
}

// Write never fails.
func (l *consoleLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	if len(l.text) > 2*tail {
		l.text = append([]byte(nil), l.text[len(l.text)-tail:]...)
	}
	return len(p), nil
}

func (l *consoleLog) end(size int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.ReplaceAll(l.text[max(0, len(l.text)-size):], []byte("\r"), nil))
}
