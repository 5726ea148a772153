// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package reap makes sure that processes are gone before what they work on is removed. It is for tests alone.
package reap

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// All kills the processes that belong to something, until none does. It gives up on any that are still found after limit.
func All(limit time.Duration, belongs func(pid int) bool) error {
	return repeat(limit, func() ([]int, error) { return killEach(belongs) })
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
			return fmt.Errorf("kill processes %v: still running", left)
		}
	}
	return nil
}

// killEach kills those that belong, and gives their IDs. Each is held by a descriptor from before it is looked at, so that no
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
		}
		_ = p.Release() // gives the descriptor back; there is nothing that could fail
	}
	return pids, nil
}
