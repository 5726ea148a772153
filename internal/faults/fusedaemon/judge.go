// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fusedaemon

import (
	"fmt"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/cri"
)

// explain goes from what is surest to what is least: the kernel's word, the runtime's, and then times alone.
func (l *exitSearch) explain() {
	l.exit.After = l.record(func(r cri.Container) bool { return r.ID == l.serving && !r.Exited })
	l.findKill()
	l.findEnded()
	switch f := &l.exit; {
	case f.Kill != nil, f.Before != nil && f.Before.Reason == "OOMKilled":
		f.Cause = OOMKilled
	case f.Before != nil:
		f.Cause = ContainerEnded
	case l.startedSince():
		f.Cause = PodReplaced
	}
}

// record finds the newest record.
func (l *exitSearch) record(wanted func(cri.Container) bool) *cri.Container {
	i := slices.IndexFunc(l.records, wanted)
	if i < 0 {
		return nil
	}
	return &l.records[i]
}

// findKill takes the last process of the pod that the kernel killed.
func (l *exitSearch) findKill() {
	for i, k := range slices.Backward(l.kills) {
		if !l.inPod(k.Cgroup) {
			continue
		}
		l.exit.Kill = &l.kills[i]
		why := "the limit of its control group " + k.Limit + " was reached"
		if k.Node {
			why = "the node had none left"
		} else if k.Limit == "" {
			why = "whose limit was reached is not known"
		}
		l.addSentence("at %s, %s, the kernel killed process %d (%q) of this pod for want of memory: %s", moment(k.Time), l.relative(k.Time), k.PID,
			k.Name, why)
		return
	}
}

// findEnded takes the last container that ended in time: one of the name that serves the driver, if there is one.
func (l *exitSearch) findEnded() {
	last := func(wanted func(cri.Container) bool) (found *cri.Container) {
		for i, r := range l.records {
			if r.Exited && wanted(r) && l.question.within(r.Finished, rounding) && (found == nil || r.Finished.After(found.Finished)) {
				found = &l.records[i]
			}
		}
		return found
	}
	b := last(func(r cri.Container) bool { return r.Name == l.exit.Container })
	if b == nil {
		b = last(func(r cri.Container) bool { return !r.Started.IsZero() && r.ExitCode != 0 }) // no init container that did its work
	}
	if b == nil {
		return
	}
	l.exit.Before = b
	reason := ""
	if b.Reason != "" {
		reason = " (" + b.Reason + ")"
	}
	text := fmt.Sprintf("its container %q, %s, ended at %s, %s, with exit code %d%s", b.Name, short(b.ID), moment(b.Finished),
		l.relative(b.Finished), b.ExitCode, reason)
	if a := l.exit.After; a != nil && a.Name == b.Name {
		text += fmt.Sprintf("; %s has run in its place since %s", short(a.ID), moment(a.Started))
	}
	l.addSentence("%s", text)
}

// startedSince reports whether the driver's container is younger than the mount.
func (l *exitSearch) startedSince() bool {
	a := l.exit.After
	if a == nil || l.question.Mounted.IsZero() || !a.Started.After(l.question.Mounted.Add(skew)) || !l.question.within(a.Started, skew) {
		return false
	}
	l.addSentence("its container %q, %s, was started at %s, after the volume was mounted; the runtime has no record of the one before it: "+
		"the pod was made anew", a.Name, short(a.ID), moment(a.Started))
	return true
}

// conclude says what is not known.
func (l *exitSearch) conclude() {
	f := &l.exit
	switch {
	case f.Cause != Unknown && l.question.Mounted.IsZero():
		l.addSentence("when the volume was mounted is not known, so its daemon may have been gone for another reason")
	case f.Cause != Unknown:
	case f.After != nil:
		l.addSentence("container %q, %s, has run since %s: the daemon ended by itself, was killed, or ran elsewhere; why is not known",
			f.After.Name, short(f.After.ID), moment(f.After.Started))
	default:
		l.addSentence("why the daemon is gone is not known")
	}
}

// relative is a time as seen from when the fault was.
func (l *exitSearch) relative(at time.Time) string {
	d := l.question.Seen.Sub(at).Round(time.Second)
	if d < 0 {
		return "as the fault was first seen" // within the skew
	}
	return d.String() + " before the fault was first seen"
}

func (l *exitSearch) addSentence(format string, args ...any) {
	l.exit.Sentences = append(l.exit.Sentences, fmt.Sprintf(format, args...))
}

func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// short is as much of a container's ID as people need.
func short(id string) string { return id[:min(len(id), 12)] }
