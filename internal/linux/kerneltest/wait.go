// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// NobodyWaits looks, until the function that it returns is called, whether a thread of the process waits for a file
// system that is served by FUSE. It fails the test if one does.
func NobodyWaits(t testing.TB, pid int) (stop func()) {
	t.Helper()
	ended, waits := make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(waits)
		for {
			select {
			case <-ended:
				return
			case <-time.After(time.Millisecond):
			}
			if what := waiting(pid); what != "" {
				waits <- what
				return
			}
		}
	}()
	return func() {
		t.Helper()
		close(ended)
		if what, is := <-waits; is {
			t.Errorf("a thread of process %d waits: %s", pid, what)
		}
	}
}

// AwaitWaits waits until a thread of the process waits for something that it cannot be kept from, such as a file system. It asks for
// nothing that would have to be waited for.
func AwaitWaits(t testing.TB, pid int) {
	t.Helper()
	for deadline, seen := time.Now().Add(Patience(30*time.Second)), 0; seen < 3; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no thread of process %d waits: %s", pid, threads(pid))
		}
		if seen++; !uninterruptible(pid) {
			seen = 0
		}
	}
}

// AwaitExec waits until the process is about to become another program: it has no arguments then.
func AwaitExec(t testing.TB, pid int) {
	t.Helper()
	for deadline := time.Now().Add(Patience(30 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(text) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d becomes no other program: %s", pid, threads(pid))
		}
	}
}

func uninterruptible(pid int) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	return slices.ContainsFunc(files, func(file string) bool {
		text, _ := os.ReadFile(file)
		return strings.Contains(string(text), "\nState:\tD")
	})
}

// waiting is what the threads of the process do where one of them waits, seen twice in a row; empty: none does.
func waiting(pid int) string {
	for range 2 {
		if !anyWaits(pid) {
			return ""
		}
		time.Sleep(50 * time.Millisecond)
	}
	return threads(pid)
}

// threads is the system call that each thread of the process makes, and where it waits in the kernel.
func threads(pid int) string {
	texts := []string{}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		call, _ := os.ReadFile(task + "/syscall")
		where, _ := os.ReadFile(task + "/wchan")
		texts = append(texts, strings.TrimSpace(string(call))+" in "+string(where))
	}
	return strings.Join(texts, "; ")
}

func anyWaits(pid int) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	for _, file := range files {
		if where, _ := os.ReadFile(file); strings.Contains(string(where), "fuse") || strings.Contains(string(where), "request_wait_answer") {
			return true
		}
	}
	return false
}
