// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fusedaemon

import (
	"fmt"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/printable"
)

// findCause goes from the surest cause to the least sure: the kernel's word, the runtime's, and then times alone.
func (s *exitSearch) findCause() {
	mounted := s.question.Mounted
	switch f := &s.exit; {
	case f.Kill != nil, f.Before != nil && f.Before.Reason == "OOMKilled":
		f.Cause = OOMKilled
	case f.Before != nil:
		f.Cause = ContainerEnded
	case f.After != nil && !mounted.IsZero() && f.After.Started.After(mounted.Add(clockSkew)) && s.question.includes(f.After.Started, clockSkew):
		f.Cause = PodReplaced
		s.addSentence("its container %q, %s, was started at %s, after the volume was mounted; the runtime has no record of the one before it: "+
			"the pod was created again", f.After.Name, shortID(f.After.ID), printable.Time(f.After.Started))
	}
}

// findKill takes the last process that the kernel killed in the control group of the pod, or of a container of it. The outermost name
// of a group counts: a process that may make control groups can choose any name inside of its own.
func (s *exitSearch) findKill() {
	for i, kill := range slices.Backward(s.kills) {
		uid, ids := podUIDOf(kill.Cgroup), cri.ContainerIDs("0::"+kill.Cgroup)
		ofContainer := slices.ContainsFunc(s.containerRecords, func(r cri.Container) bool { return slices.Contains(ids, r.ID) })
		if uid != s.exit.Pod.UID && (uid != "" || !ofContainer) {
			continue
		}
		s.exit.Kill = &s.kills[i]
		why := "the limit of its control group " + kill.Limit + " was reached"
		if kill.Node {
			why = "the node had none left"
		} else if kill.Limit == "" {
			why = "whose limit was reached is not known"
		}
		s.addSentence("at %s, %s, the kernel killed process %d (%q) of this pod for lack of memory: %s",
			printable.Time(kill.Time), s.relativeTime(kill.Time), kill.PID,
			kill.Name, why)
		return
	}
}

// findEnded notes two containers: the one that serves the driver now, and the last that ended in the time of the question. Of those that
// ended, a container with the name of the one that serves is preferred.
func (s *exitSearch) findEnded() {
	if i := slices.IndexFunc(s.containerRecords, func(r cri.Container) bool { return r.ID == s.servingContainerID && !r.Exited }); i >= 0 {
		s.exit.After = &s.containerRecords[i] // the newest comes first
	}
	last := func(wanted func(cri.Container) bool) (found *cri.Container) {
		for i, r := range s.containerRecords {
			if r.Exited && wanted(r) && s.question.includes(r.Finished, timeRounding) && (found == nil || r.Finished.After(found.Finished)) {
				found = &s.containerRecords[i]
			}
		}
		return found
	}
	before := last(func(r cri.Container) bool { return r.Name == s.exit.Container })
	if before == nil {
		before = last(func(r cri.Container) bool { return !r.Started.IsZero() && r.ExitCode != 0 }) // no init container that did its work
	}
	if before == nil {
		return
	}
	s.exit.Before = before
	reason := ""
	if before.Reason != "" {
		reason = " (" + before.Reason + ")"
	}
	text := fmt.Sprintf("its container %q, %s, ended at %s, %s, with exit code %d%s", before.Name, shortID(before.ID), printable.Time(before.Finished),
		s.relativeTime(before.Finished), before.ExitCode, reason)
	if a := s.exit.After; a != nil && a.Name == before.Name {
		text += fmt.Sprintf("; %s has run in its place since %s", shortID(a.ID), printable.Time(a.Started))
	}
	s.addSentence("%s", text)
}

// addUnknowns names the unknown facts.
func (s *exitSearch) addUnknowns() {
	f := &s.exit
	switch {
	case f.Cause != Unknown && s.question.Mounted.IsZero():
		s.addSentence("when the volume was mounted is not known, so its daemon may have been gone for another reason")
	case f.Cause != Unknown:
	case f.After != nil:
		s.addSentence("container %q, %s, has run since %s: the daemon ended by itself, was killed, or ran elsewhere; why is not known",
			f.After.Name, shortID(f.After.ID), printable.Time(f.After.Started))
	default:
		s.addSentence("why the daemon is gone is not known")
	}
}

// relativeTime is a time as seen from when the fault was.
func (s *exitSearch) relativeTime(at time.Time) string {
	d := s.question.Seen.Sub(at).Round(time.Second)
	if d < 0 {
		return "as the fault was first seen" // within the skew
	}
	return d.String() + " before the fault was first seen"
}

func (s *exitSearch) addSentence(format string, args ...any) {
	s.exit.Sentences = append(s.exit.Sentences, fmt.Sprintf(format, args...))
}

// shortID is as much of a container's ID as people need.
func shortID(id string) string { return id[:min(len(id), 12)] }
