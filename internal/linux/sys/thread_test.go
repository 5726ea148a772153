// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestOnThreadRunsOnAThreadOfItsOwn(t *testing.T) {
	t.Parallel()
	failure := errors.New("failure")
	tids := make(chan int, 64)
	var wg sync.WaitGroup
	for range cap(tids) {
		wg.Go(func() {
			err := OnThread(func() error {
				tids <- unix.Gettid()
				if !InPrivateThread() {
					t.Error("not said to be private inside")
				}
				return failure
			})
			if err != failure {
				t.Errorf("error %v, want the function's own", err)
			}
		})
	}
	wg.Wait()
	for range cap(tids) {
		if tid := <-tids; tid == unix.Getpid() {
			t.Error("ran on the main thread")
		}
	}
	if InPrivateThread() {
		t.Error("said to be private outside")
	}
}

// TestThreadTimeIsThatOfWork: not that of waiting, nor that of another thread.
func TestThreadTimeIsThatOfWork(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begun, before := time.Now(), ThreadTime()
	var worked time.Duration
	_ = OnThread(func() error {
		for start := ThreadTime(); worked < 20*time.Millisecond; worked = ThreadTime() - start {
		}
		return nil
	})
	waited := ThreadTime() - before
	if elapsed := time.Since(begun); worked > elapsed || waited >= worked {
		t.Errorf("within %v one thread worked for %v, and one that waited for %v", elapsed, worked, waited)
	}
}

// Package initialisation is the one place that certainly runs on the main thread. The test below checks its results.
var fromMain struct {
	onMain, avoided bool
	err             error
}

func init() {
	var out callOutcome
	done := make(chan struct{})
	fromMain.onMain = unix.Gettid() == unix.Getpid()
	runLocked(func() error {
		fromMain.avoided = unix.Gettid() != unix.Getpid()
		return errors.New("failure")
	}, &out, done)
	<-done
	fromMain.err = out.err
}

func TestOnThreadAvoidsTheMainThread(t *testing.T) {
	t.Parallel()
	if !fromMain.onMain {
		t.Fatal("initialisation does not run on the main thread")
	}
	if !fromMain.avoided || fromMain.err == nil {
		t.Errorf("avoided the main thread: %v, error %v", fromMain.avoided, fromMain.err)
	}
}

func TestOnThreadKeepsDirectoryAndMaskToItself(t *testing.T) {
	t.Parallel()
	before, err := os.Readlink("/proc/self/cwd")
	if err != nil {
		t.Fatal(err)
	}
	err = OnThread(func() error {
		if err := unix.Chdir("/proc"); err != nil {
			return err
		}
		inside, err := ReadlinkProc(ThreadProc("cwd"))
		if err == nil && inside != "/proc" {
			t.Errorf("working directory %q inside, want /proc", inside)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if after, err := os.Readlink("/proc/self/cwd"); err != nil || after != before {
		t.Errorf("working directory %q afterwards, %v, want %q", after, err, before)
	}
}

func TestOnThreadPassesPanicOn(t *testing.T) {
	t.Parallel()
	defer func() {
		if got := recover(); got != "oh" {
			t.Errorf("recovered %v, want the panic's value", got)
		}
	}()
	_ = OnThread(func() error { panic("oh") })
	t.Error("came back")
}

func TestOnThreadPassesGoexitOn(t *testing.T) {
	t.Parallel()
	ended := make(chan bool)
	go func() {
		back := false
		defer func() { ended <- back }()
		_ = OnThread(func() error { runtime.Goexit(); return nil })
		back = true
	}()
	if <-ended {
		t.Error("came back")
	}
}
