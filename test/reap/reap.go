// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package reap makes sure that processes are gone before what they work on is removed. It is for tests alone.
package reap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// maxEnd is how long processes may take to end, and maxEndLeft how long those may that did not end in that time.
	maxEnd, maxEndLeft = 30 * time.Second, 200 * time.Millisecond
	// leftFile is in a folder whose processes did not end.
	leftFile = "left-processes"
)

// AliveError names processes that were killed and do not end.
type AliveError struct{ PIDs []int }

// Error names each by its ID, its program and its state.
func (e *AliveError) Error() string {
	var names []string
	for _, pid := range e.PIDs {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have ended just now
		about, _, _ := strings.Cut(string(stat), ") ")
		state, _, _ := strings.Cut(strings.TrimPrefix(string(stat), about+") "), " ")
		_, program, _ := strings.Cut(about, "(")
		names = append(names, strings.TrimSpace(fmt.Sprint(pid, " ", program, " ", state)))
	}
	return fmt.Sprintf("kill processes %q: still running", names)
}

// All kills the processes that belong to what has its files in dir, until none does, and thaws their cgroups. It gives up on
// any that are still found after 30 s, with an AliveError, and leaves a note in dir: the next call for dir only tries for a moment.
func All(dir string, belongs func(pid int) bool) error {
	return within(dir, func() ([]int, error) { return killEach(belongs) })
}

// within repeats kill for as long as dir is worth it.
func within(dir string, kill func() ([]int, error)) error {
	limit, note := maxEnd, filepath.Join(dir, leftFile)
	if _, err := os.Lstat(note); err == nil {
		limit = maxEndLeft
	}
	err := repeat(limit, kill)
	if alive, ok := errors.AsType[*AliveError](err); ok {
		return errors.Join(err, os.WriteFile(note, []byte(alive.Error()+"\n"), 0o600))
	}
	return err
}

// repeat calls kill, which gives the IDs of the processes that it has found and killed, until two calls in a row find none:
// those that were killed may work for a moment yet, and start others.
func repeat(limit time.Duration, kill func() ([]int, error)) error {
	deadline := time.Now().Add(limit)
	for quiet := 0; quiet < 2; time.Sleep(20 * time.Millisecond) {
		left, err := kill()
		if err != nil {
			return err
		}
		quiet++
		if len(left) > 0 {
			quiet = 0
		}
		if time.Now().After(deadline) && len(left) > 0 {
			return &AliveError{left}
		}
	}
	return nil
}

// killEach kills those that belong, thaws their cgroups, and gives their IDs. Each is held by a descriptor from before it is looked at, so that no
// other is hit that got its ID.
func killEach(belongs func(pid int) bool) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if belongs(pid) {
			pids = append(pids, pid)
			if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return pids, fmt.Errorf("kill process %d: %w", pid, err)
			}
			thaw(pid)
		}
		_ = p.Release() // gives the descriptor back; there is nothing that could fail
	}
	return pids, nil
}

// Threads gives the directories in /proc of the threads of a process that show its cgroup: the one of its first thread or, if that has ended
// and others have not, of all those. The kernel counts a first thread that has ended as one of the root cgroup, without an environment. There are
// none of a process that has ended.
func Threads(pid int) (running []string) {
	leader := filepath.Join("/proc", strconv.Itoa(pid))
	if runs(leader) {
		return []string{leader}
	}
	all, _ := filepath.Glob(filepath.Join(leader, "task", "[0-9]*"))
	return slices.DeleteFunc(all, func(thread string) bool { return !runs(thread) })
}

// runs reports whether a thread has not ended, by its directory in /proc.
func runs(proc string) bool {
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	i := bytes.LastIndexByte(stat, ')')
	return err == nil && len(stat) > i+2 && stat[i+2] != 'Z' && stat[i+2] != 'X'
}
