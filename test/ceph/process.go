// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"kubediag.org/kubediag/test/debian"
)

// process is a program of Ceph in the foreground: a child of this process that dies with it.
type process struct {
	cmd  *exec.Cmd
	log  string        // path of what it said
	done chan struct{} // closed when it has ended and been waited for
}

// environment is all that Ceph's programs get of one: nothing of the caller's.
func (c *Cluster) environment() []string {
	return []string{"PATH=" + debian.Path, "HOME=" + c.dir, "TMPDIR=" + c.dir, confEnv + c.Conf()}
}

// start starts a program and keeps what it says below the name. It is killed when this process ends.
func (c *Cluster) start(name, program string, args ...string) (*process, error) {
	path, err := debian.LookPath(program)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(c.path("log", name+".out"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer log.Close()
	p := &process{cmd: exec.Command(path, args...), log: log.Name(), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = "/", c.environment(), log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		defer close(p.done)
		runtime.LockOSThread() // the child is killed when the thread that made it ends
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how it ended is in its state
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// daemon starts a daemon of the cluster, once.
func (c *Cluster) daemon(program string, args ...string) error {
	p, err := c.start(program, program, args...)
	if err == nil {
		c.daemons = append(c.daemons, p)
	}
	return err
}

// How long those that a killed process has started may take to go: promptly, before more is done about it, and at most.
const (
	promptly = 200 * time.Millisecond
	maxEnd   = 20 * time.Second
)

// kill ends the process and those that it has started at once, and returns when they have let go of everything. It may
// be gone already. False: one of them has not gone within the limit.
func (p *process) kill(limit time.Duration) bool {
	pid := p.cmd.Process.Pid
	if !p.ended() {
		_ = syscall.Kill(-pid, syscall.SIGKILL) // it leads a group of its own
	}
	<-p.done
	for deadline := time.Now().Add(limit); hasGroup(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// hasGroup reports whether a living process belongs to the group. A zombie has nothing any more.
func hasGroup(group int) bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, _ := os.ReadFile(path) // it may have ended
		f := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		if len(f) > 2 && string(f[2]) == strconv.Itoa(group) && f[0][0] != 'Z' && f[0][0] != 'X' {
			return true
		}
	}
	return false
}

// signal fails where the process has ended.
func (p *process) signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal %s: %w", p.cmd.Path, err)
	}
	return nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// failure says how the process ended, with the end of what it said.
func (p *process) failure() error {
	said, err := os.ReadFile(p.log)
	return errors.Join(fmt.Errorf("run %s: %s: %s", p.cmd.Path, p.cmd.ProcessState, bytes.TrimSpace(said[max(0, len(said)-4096):])), err)
}

// run runs a program to its end.
func (c *Cluster) run(ctx context.Context, program string, args ...string) error {
	_, err := c.output(ctx, program, args...)
	return err
}

// output runs a program to its end and gives what it wrote to its standard output.
func (c *Cluster) output(ctx context.Context, program string, args ...string) ([]byte, error) {
	path, err := debian.LookPath(program)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = c.environment()
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("run %s %q: %w: %s", program, args, err, bytes.TrimSpace(append(out, said.Bytes()...)))
	}
	return out, nil
}
