// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"maps"
	"slices"
	"time"
)

const (
	// trustSilence is for how long the answer of a file system that hangs serves later passes, while requests wait for its server. It is
	// asked again then. So hundreds of file systems that hang delay one pass in this time, and not each of them.
	trustSilence = 20 * time.Second
	// rememberSilence is for how long a file system that did not answer has half the time in a pass.
	rememberSilence = 2 * time.Minute
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
	if !p.Once {
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
	g.silentBefore = true
	g.trusted = known.answer.State != NotProbed && g.requestsWait && time.Since(known.at) < trustSilence
}

// knownSilence returns the answer of an earlier pass for a group that is not to be asked again.
func (s *pass) knownSilence(g *targetGroup) (a Answer, ok bool) {
	known := s.prober.silences[g.device]
	if known.answer.State == "" || known.answer.State == NotProbed || !g.trusted && !s.prober.Once {
		return Answer{}, false
	}
	return known.answer, true
}
