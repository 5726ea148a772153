// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sys_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// lockAndHang is a role: it locks args[0], and has its main thread, or another one, wait for the file system at args[1]
// that has taken its question up.
func lockAndHang(args []string, ready func(string)) error {
	lock, err := sys.LockFile(args[0])
	if err != nil {
		return err
	}
	defer lock.Close()
	for !anyTask(os.Getpid(), "stack", "fuse_") { // kernels before 5.16 may not say in wchan where it waits
		go func() {
			runtime.LockOSThread() // for good
			if (sys.ThreadID() == os.Getpid()) == (args[2] == "main thread") {
				_, _ = os.Lstat(filepath.Join(args[1], "hang"))
			}
			select {}
		}()
		time.Sleep(time.Millisecond)
	}
	if _, err := os.Lstat(args[1]); err != nil { // asked later, and answered
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// anyTask reports whether a file of a thread of the process has the text.
func anyTask(pid int, file, text string) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/%s", pid, file))
	for _, name := range files {
		if content, err := os.ReadFile(name); err == nil && strings.Contains(string(content), text) {
			return true
		}
	}
	return false
}

// TestKilledOwnerKeepsNoLock kills a process with a lock, of which a thread waits in the kernel and cannot end.
func TestKilledOwnerKeepsNoLock(t *testing.T) {
	for _, stuck := range []string{"main thread", "other thread"} {
		t.Run(stuck, func(t *testing.T) { takeLockOver(t, stuck) })
	}
}

func takeLockOver(t *testing.T, stuck string) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "lock")
	server := kerneltest.FUSE(t, dir)
	owner := kerneltest.StartWith(t, nil, "lock and hang", file, dir, stuck)
	t.Cleanup(server.End) // before the owner is waited for
	if _, err := sys.LockFile(file); !errors.Is(err, sys.EAGAIN) {
		t.Fatalf("a lock whose owner lives: %v", err)
	}
	process, err := os.FindProcess(owner.PID)
	must(t, err)
	must(t, process.Kill())
	var lock *sys.FD
	for deadline := time.Now().Add(10 * time.Second); lock == nil; time.Sleep(time.Millisecond) {
		if lock, err = sys.LockFile(file); time.Now().After(deadline) {
			t.Fatalf("the successor: %v", err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); !anyTask(owner.PID, "stat", ") D "); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) { // a busy machine takes its time to have the killed thread wait again
			t.Fatal("no thread of the owner waits: the test shows nothing")
		}
	}
	if _, err := sys.LockFile(file); !errors.Is(err, sys.EAGAIN) {
		t.Errorf("a third process, while the successor has it: %v", err)
	}
	server.End() // now the killed one ends, and its lock with it
	owner.End()
	if _, err := sys.LockFile(file); !errors.Is(err, sys.EAGAIN) {
		t.Errorf("a third process, when the first has ended altogether: %v", err)
	}
	must(t, lock.Close())
	lock, err = sys.LockFile(file)
	must(t, err)
	must(t, lock.Close())
}
