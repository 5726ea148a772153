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

// maxWait is how long a test waits for an event. No event needs that long: it bounds a test that would hang.
const maxWait = 2 * time.Minute

// Await waits until something is so.
func Await(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience(maxWait)); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so: %s", what)
		}
	}
}

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

// AwaitLocked waits until the memory of a process that called hung.LockMemory is locked: two of its threads have waited,
// for longer than a disk takes, for something that they cannot be kept from, and a reader of its arguments waits, too,
// which on Linux 5.10 may begin later. Only processes of their own read, and end before AwaitLocked returns.
func AwaitLocked(t testing.TB, pid int) {
	t.Helper()
	const pause = 10 * time.Millisecond
	for deadline, seen := time.Now().Add(Patience(maxWait)), 0; seen < int(Patience(200*time.Millisecond)/pause); time.Sleep(pause) {
		if time.Now().After(deadline) {
			t.Fatalf("the memory of process %d is not locked", pid)
		}
		if seen++; uninterruptible(pid) < 2 {
			seen = 0
		}
	}
	Await(t, "a reader waits", func() bool { return readerWaits(t, pid) })
}

// readerWaits reports whether a process that reads the arguments of another one has to wait.
func readerWaits(t testing.TB, pid int) bool {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	reader, err := os.StartProcess("/bin/cat", []string{"cat", fmt.Sprintf("/proc/%d/cmdline", pid)},
		&os.ProcAttr{Files: []*os.File{null, null, os.Stderr}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = reader.Wait() // its status says nothing
	}()
	select {
	case <-ended:
		return false
	case <-time.After(Patience(200 * time.Millisecond)):
	}
	_ = reader.Kill() // it may have ended just now
	<-ended
	return true
}

// AwaitExec waits until the process waits for a file system as it becomes another program. It reports whether the
// memory of the old one is gone by then, and its arguments with it. Linux 6.1 and 6.12 close files before that: the
// other threads have ended then. It reads no file that would make it wait.
func AwaitExec(t testing.TB, pid int) (gone bool) {
	t.Helper()
	for deadline, alone := time.Now().Add(Patience(maxWait)), 0; ; time.Sleep(10 * time.Millisecond) {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(text) == 0 {
			return true
		}
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if alone++; err != nil || len(tasks) > 1 {
			alone = 0
		}
		if alone == 100 {
			return false
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d becomes no other program", pid)
		}
	}
}

// uninterruptible returns how many threads of the process are in state D.
func uninterruptible(pid int) (threads int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, file := range files {
		if text, _ := os.ReadFile(file); strings.Contains(string(text), "\nState:\tD") {
			threads++
		}
	}
	return threads
}

// waiting is the state of the threads of the process if one of them waits, seen twice in a row; empty: no thread waits.
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
