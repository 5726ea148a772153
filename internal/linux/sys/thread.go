// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ThreadTime is for how long the calling thread has had a processor. The caller
// is locked to its thread.
func ThreadTime() time.Duration { return readClock(unix.CLOCK_THREAD_CPUTIME_ID) }

// OnThread runs fn on an operating system thread of its own and waits for it.
// The thread shares no working directory, root or umask with the process, may
// therefore enter another mount namespace, and ends with fn: it is never used
// again for anything else. Goroutines that fn starts run elsewhere; processes
// that fn starts are born on the thread, in its namespace. A panic in fn, and
// runtime.Goexit, pass through to the caller.
//
// The thread is never the process' main one. /proc/PID names the main thread,
// so a main thread in another namespace would make the whole process look as
// if it were there.
func OnThread(fn func() error) error {
	var out callOutcome
	done := make(chan struct{})
	go runLocked(fn, &out, done)
	<-done
	switch {
	case out.returned:
		return out.err
	case out.panicked != nil:
		panic(out.panicked)
	}
	runtime.Goexit()
	return nil
}

// runLocked runs fn locked to a thread that is not the main one, and returns
// without unlocking, which ends the thread.
func runLocked(fn func() error, out *callOutcome, done chan<- struct{}) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// While this goroutine keeps the main thread, another cannot get it.
		other := make(chan struct{})
		go runLocked(fn, out, other)
		<-other
		runtime.UnlockOSThread()
		close(done)
		return
	}
	// No deferred call may come after the close: the caller goes on then.
	defer close(done)
	defer func() {
		if !out.returned {
			out.panicked = recover()
		}
	}()
	// The thread detaches its file system state, and InPrivateThread reports so while fn runs.
	if out.err = unix.Unshare(unix.CLONE_FS); out.err == nil {
		tid := unix.Gettid()
		privateThreads.Store(tid, struct{}{})
		defer privateThreads.Delete(tid)
		out.err = fn()
	}
	out.returned = true
}

var privateThreads sync.Map // thread ID -> struct{}

// InPrivateThread reports whether the caller runs inside OnThread, and so may
// change its working directory, root and mount namespace.
func InPrivateThread() bool {
	_, ok := privateThreads.Load(unix.Gettid())
	return ok
}

// callOutcome carries the three ways in which a function ends to another goroutine.
type callOutcome struct {
	err      error
	returned bool
	panicked any
}
