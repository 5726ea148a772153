// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
)

// waitingThread is a thread of an earlier pass that did not answer. Its process was killed. A thread that waits for a
// request that a server of FUSE has taken up, or for a disk, does not end until it has its answer.
type waitingThread struct {
	pid, thread int
	gone        <-chan struct{} // closed once the process has ended
	since       time.Time
	question    string
	owner       string
	state       State // the verdict: Hung or Frozen
}

// there reports whether the thread still waits.
func (w waitingThread) there() bool {
	select {
	case <-w.gone:
		return false
	default:
	}
	// The process has not been reaped, so its number is still its own, and it starts no more threads.
	stat, err := sys.ReadProcStat(fmt.Sprintf("%d/task/%d", w.pid, w.thread))
	// Killed, it waits like this, or is about to end.
	return err == nil && stat.State == 'D'
}

func (w waitingThread) String() string {
	return fmt.Sprintf("%s: no answer for %v; thread %d of process %d, which was killed, still waits, and no other one is sent",
		w.question, time.Since(w.since).Round(time.Millisecond), w.thread, w.pid)
}
