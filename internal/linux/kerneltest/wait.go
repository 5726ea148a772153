// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"fmt"
	"os"
	"path/filepath"
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

// waiting is what the threads of the process do where one of them waits, seen twice in a row; empty: none does.
func waiting(pid int) string {
	for range 2 {
		if !anyWaits(pid) {
			return ""
		}
		time.Sleep(50 * time.Millisecond)
	}
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
