// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"kubediag.org/kubediag/test/vm/wire"
)

// server runs programs for the host.
type server struct {
	mu  sync.Mutex
	out *gob.Encoder
}

// serve answers the host until it hangs up. failed is why the machine is of no use, if it is not.
func serve(failed string) error {
	name, err := await("port", "/sys/class/virtio-ports/*/name", wire.Port, func(found string) string {
		return "/dev/" + filepath.Base(filepath.Dir(found))
	})
	if err != nil {
		return err
	}
	port, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	s := server{out: gob.NewEncoder(port)}
	if err := s.out.Encode(hello(failed)); err != nil {
		return err
	}
	for in := gob.NewDecoder(port); ; {
		var c wire.Call
		if err := in.Decode(&c); err != nil {
			return fmt.Errorf("read from host: %w", err)
		}
		go s.run(c)
	}
}

func hello(failed string) wire.Hello {
	h := wire.Hello{Failed: failed}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	h.Release = strings.TrimSpace(string(release))
	return h
}

func (s *server) answer(a wire.Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(a) // a host that is gone has no use for it
}

// run runs one program. It is over when the program has ended, though others may hold its output.
func (s *server) run(c wire.Call) {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Dir, cmd.Env = c.Dir, append(os.Environ(), c.Env...)
	out := output{s: s, id: c.ID}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 2 * time.Second
	done := wire.Answer{ID: c.ID, Done: true}
	if err := cmd.Start(); err != nil {
		done.Status, done.Failed = -1, err.Error()
		s.answer(done)
		return
	}
	var watch [2]*time.Timer
	if c.Limit > 0 {
		// A program of Go says where it hangs before it ends.
		watch[0] = time.AfterFunc(c.Limit, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGQUIT) })
		watch[1] = time.AfterFunc(c.Limit+5*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	}
	err := cmd.Wait()
	if c.Limit > 0 {
		if !watch[0].Stop() {
			done.Failed = fmt.Sprintf("did not end within %s", c.Limit)
		}
		watch[1].Stop()
	}
	done.Status = cmd.ProcessState.ExitCode()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		done.Failed = err.Error()
	}
	s.answer(done)
}

// output sends what a program says, as it says it.
type output struct {
	s  *server
	id uint64
}

func (o output) Write(p []byte) (int, error) {
	o.s.answer(wire.Answer{ID: o.id, Output: p})
	return len(p), nil
}
