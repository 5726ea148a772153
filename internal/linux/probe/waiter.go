// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
)

// waiter is a thread of an earlier pass that did not answer. Its process was
// killed; one that waits for what was taken up by a server of FUSE, or for a
// disk, does not end until it has its answer.
type waiter struct {
	pid, thread int
	gone        <-chan struct{} // closed once the process has ended
	since       time.Time
	question    string
	owner       string
}

// there tells whether the thread still waits.
func (w waiter) there() bool {
	select {
	case <-w.gone:
		return false
	default:
	}
	// The process has not been waited for, so that its number is its own yet,
	// and it makes no more threads.
	text, err := sys.ReadProcHead(fmt.Sprintf("%d/task/%d/stat", w.pid, w.thread), nil)
	if err != nil {
		return false
	}
	// After the name in parentheses, which may contain anything.
	_, state, _ := cutLast(text, []byte(") "))
	// Killed, it waits like this, or is about to end.
	return len(state) > 0 && state[0] == 'D'
}

func (w waiter) String() string {
	return fmt.Sprintf("%s: no answer for %v; thread %d of process %d, which was killed, still waits, and no other one is sent",
		w.question, time.Since(w.since).Round(time.Millisecond), w.thread, w.pid)
}

func cutLast(s, sep []byte) (before, after []byte, found bool) {
	if i := bytes.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, nil, false
}
