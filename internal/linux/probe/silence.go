// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
)

const (
	// trustSilence is for how long the answer of a file system that hangs serves later passes, while requests wait for its server. It is
	// asked again then. So hundreds of file systems that hang delay one pass in this time, and not each of them.
	trustSilence = 20 * time.Second
	// rememberSilence is for how long it is remembered that a file system did not answer.
	rememberSilence = 2 * time.Minute
	// secondLook is how long after the first silence of a file system a pass may find that it hangs, where there are two looks. Until
	// then it is not asked again.
	secondLook = 2 * time.Second
	// maxSilences bounds the file systems that are remembered as silent.
	maxSilences = 4096
)

// silence is the end of the last question to a file system that did not answer.
type silence struct {
	answer Answer // of the mount that was asked; NotProbed if the wait was too short for a verdict
	at     time.Time
}

// forgetSilences forgets silences that are too old, and all if there are too many.
func (p *Prober) forgetSilences() {
	if p.Looks != OneLook {
		maps.DeleteFunc(p.silences, func(_ uint64, known silence) bool { return time.Since(known.at) > rememberSilence })
	}
	if len(p.silences) > maxSilences {
		clear(p.silences)
	}
}

// noteSilence remembers how the file system of a group was silent before. The number of a device may be that of another file system by now:
// it is the same one if the mount that was asked then is there still.
func (s *pass) noteSilence(g *targetGroup) {
	known, ok := s.prober.silences[g.device]
	if !ok || !slices.ContainsFunc(g.questions, func(q question) bool { return sameMount(s.answers[q.Target].ID, known.answer.ID) }) {
		return
	}
	g.silence = known.answer.State
	g.trusted = g.silence != NotProbed && g.silence != Silent && g.requestsWait && time.Since(known.at) < trustSilence
}

// knownSilence returns the answer of an earlier pass for a group that is not to be asked again. waits is whether a thread of an earlier pass
// still waits for it.
func (s *pass) knownSilence(g *targetGroup, waits bool) (a Answer, ok bool) {
	known := s.prober.silences[g.device]
	switch {
	case known.answer.State == "" || known.answer.State == NotProbed:
		return Answer{}, false
	case known.answer.State == Silent:
		ok = g.silence == Silent && time.Since(known.at) < secondLook
	case s.prober.Looks == OneLook:
		ok = true
	default:
		ok = g.trusted && !waits
	}
	return known.answer, ok
}

// stateOfWaiter is the verdict about a group for which a thread of an earlier pass still waits.
func (s *pass) stateOfWaiter(w waitingThread) State {
	if s.prober.Looks == TwoLooks && w.state == Hung && time.Since(w.since) < secondLook+s.prober.deadlineOrDefault()/2 {
		return Silent
	}
	return w.state
}

// stateOfSilence is the verdict about a group that has not answered for long enough.
func (s *pass) stateOfSilence(g *targetGroup, l lateQuestion) State {
	state := l.silentState()
	if s.prober.Looks == TwoLooks && state == Hung && (g.silence == "" || g.silence == NotProbed) {
		return Silent
	}
	return state
}

// hasHalfTime reports whether a group has half the time of a pass: an earlier one has found that it does not answer.
func (g *targetGroup) hasHalfTime() bool { return g.silence != "" && g.silence != Silent }

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
