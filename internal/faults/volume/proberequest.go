// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
)

// probeRequest is something that is to be asked, and what becomes of the answer.
type probeRequest struct {
	target probe.Target
	take   func(probe.Answer)
}

var errShortReply = errors.New("the prober has answered something else")

// maxPasses bounds how often is asked again what there was no time for.
const maxPasses = 4

// maxRequest bounds the paths in one request, in bytes. The prober's process has to read it as a whole, and anybody may
// have mounts at long paths: those of one pod must not make it too long for all.
const maxRequest = 2 << 20

// ask asks all of it, at once where it is not more than one request.
func (l *look) ask(ctx context.Context, questions []probeRequest) error {
	for len(questions) > 0 {
		n, size := 0, 0
		for n < len(questions) && (n == 0 || size+questions[n].size() <= maxRequest) {
			size += questions[n].size()
			n++
		}
		if err := l.askRequest(ctx, questions[:n]); err != nil {
			return err
		}
		questions = questions[n:]
	}
	return nil
}

func (q probeRequest) size() int {
	return len(q.target.Point) + len(q.target.ID.Root) + len(q.target.Below)
}

// askRequest asks all of it at once, and again what was not asked, as long as that gets on.
func (l *look) askRequest(ctx context.Context, questions []probeRequest) error {
	for pass := range maxPasses {
		left, err := l.askOnce(ctx, questions)
		if err != nil {
			return err
		}
		if len(left) == 0 || len(left) == len(questions) && pass > 0 {
			break
		}
		questions = left
	}
	return ctx.Err()
}

// askOnce gives those that were not asked.
func (l *look) askOnce(ctx context.Context, questions []probeRequest) (left []probeRequest, err error) {
	if len(questions) == 0 {
		return nil, nil
	}
	targets := make([]probe.Target, len(questions))
	for i, q := range questions {
		targets[i] = q.target
	}
	answers, err := l.Prober.Ask(ctx, targets)
	if len(answers) != len(questions) || ctx.Err() != nil {
		return nil, fmt.Errorf("ask %d mounts: %d answers: %w", len(targets), len(answers), cmp.Or(err, ctx.Err(), errShortReply))
	}
	if err != nil { // what could not be asked says so
		l.incomplete("not every mount could be asked: %v", err)
	}
	l.survey.Coverage.Asked += len(questions)
	for i, q := range questions {
		q.take(answers[i])
		if answers[i].State == probe.Unasked {
			left = append(left, q)
		}
	}
	l.survey.Coverage.Asked -= len(left)
	return left, nil
}

// about is the question for a mount, or for what is below its root.
func about(m mountns.Mount, below string, bind bool) probe.Target {
	return probe.Target{Namespace: m.Namespace, Point: m.Point, ID: mountID(m), Below: below, Bind: bind}
}

// of has the owner be held to account where there is no answer.
func of(owner string, t probe.Target) probe.Target {
	t.Owner = owner
	return t
}

// owner is the pod in whose hands the copy is. All mounts of processes that are in no container count together.
func (c *Copy) owner() string {
	return cmp.Or(c.Pod.UID, "no pod that is known")
}

// askVolumes asks every volume's own mount, and every staging path once, for its root alone.
func (l *look) askVolumes(ctx context.Context) error {
	var questions []probeRequest
	for _, v := range l.survey.Volumes {
		if v.Mount.ID == 0 {
			continue
		}
		bind := v.Plugin != HostPathPlugin || v.Point == v.Mount.Point
		questions = append(questions, probeRequest{of(v.Pod.UID, about(v.Mount, "", bind)), func(a probe.Answer) {
			v.Answer, v.Mount.Unique = a, a.ID.Unique
		}})
		if v.Staging != nil && l.staged[v.Staging.Point] == nil {
			answer := &probe.Answer{}
			l.staged[v.Staging.Point] = answer
			questions = append(questions, probeRequest{of(v.Pod.UID, about(v.Staging.Mount, "", false)), func(a probe.Answer) { *answer = a }})
		}
	}
	if err := l.ask(ctx, questions); err != nil {
		return err
	}
	for _, v := range l.survey.Volumes {
		if v.Staging != nil {
			v.Staging.Answer = *l.staged[v.Staging.Point]
			v.Staging.Mount.Unique = v.Staging.Answer.ID.Unique
		}
	}
	return nil
}

// askSources asks for the directory that belongs at each volume's place, through mounts that have answered alone: to
// look it up through a dead one would have the kernel forget it.
func (l *look) askSources(ctx context.Context) error {
	var questions []probeRequest
	for _, v := range l.survey.Volumes {
		switch {
		case v.Plugin == HostPathPlugin:
			if v.Answer.State == probe.Alive && v.below() != "" {
				questions = append(questions, probeRequest{of(v.Pod.UID, about(v.Mount, v.below(), true)), func(a probe.Answer) { v.location.answer = a }})
			}
		case v.Staging != nil && v.Staging.Answer.State == probe.Alive:
			l.place(v)
			if v.location.known {
				// Whether it can be bound matters only where it has to be.
				bind := v.Answer.State != probe.Alive || v.Answer.Bindable == probe.No
				if bind || v.location.below != "" {
					questions = append(questions, v.aboutOrigin(bind))
				} else {
					v.location.answer = v.Staging.Answer
				}
			}
		case v.Staging != nil:
			l.place(v)
		}
	}
	return l.ask(ctx, questions)
}

// aboutOrigin asks for the directory that belongs at the volume's place.
func (v *Volume) aboutOrigin(bind bool) probeRequest {
	return probeRequest{of(v.Pod.UID, about(v.Staging.Mount, v.location.below, bind)), func(a probe.Answer) { v.location.answer = a }}
}

// askBinds has a trial bind made of the directories that turned out to be needed.
func (l *look) askBinds(ctx context.Context) error {
	var questions []probeRequest
	for _, v := range l.survey.Volumes {
		if now := v.location.answer; v.Code != "" && v.Staging != nil && now.State == probe.Alive && now.Bindable == probe.Unknown {
			questions = append(questions, v.aboutOrigin(true))
		}
	}
	return l.ask(ctx, questions)
}

// stagedLocation is where in a mount that is alive the volume's directory is.
type stagedLocation struct {
	known  bool   // below is
	below  string // the way from the root of the mount
	answer probe.Answer
	// split is whether the volume's mount is of the node's own disk, of the directory that the staged file system covers;
	// hidden is that directory there.
	split  bool
	disk   device
	hidden string
}

// place finds the way from the staging path to the volume's directory, from where the volume's mount has its root: in
// the file system that is staged, or in the one below it, where that was bound before the volume was mounted.
func (l *look) place(v *Volume) {
	g, root := v.Staging.Mount, rootOf(v.Mount.Mount)
	dir, ok := l.coveredDir(v.Staging)
	under, covered := "", false
	if ok && v.Mount.ID != 0 && deviceOf(v.Mount.Mount) == dir.disk {
		under, covered = relative(dir.hidden, root)
	}
	switch below, within := relative(rootOf(g.Mount), root); {
	case v.Mount.ID == 0:
		v.NoSourceReason = fmt.Sprintf("nothing is mounted at %q, so which directory of the volume belongs there cannot be told", v.Point)
	case covered:
		v.location = stagedLocation{known: true, below: under, split: true, disk: dir.disk, hidden: path.Join(dir.hidden, under)}
	case !within:
		v.NoSourceReason = fmt.Sprintf("the mount has directory %q of its file system, which is not in directory %q that is staged at %q", root,
			rootOf(g.Mount), v.Staging.Point)
	default:
		v.location = stagedLocation{known: true, below: below}
		if ok {
			v.location.disk, v.location.hidden = dir.disk, path.Join(dir.hidden, below)
		}
	}
}

// coveredDir is the directory that the lowest mount at a staging path covers.
func (l *look) coveredDir(s *Staging) (stagedLocation, bool) {
	lowest := l.stack(s.Mount.Mount)[0]
	on, ok := l.table.ByID(lowest.Parent)
	if !ok || deviceOf(on) == deviceOf(lowest) {
		return stagedLocation{}, false
	}
	below, ok := relative(on.Point, lowest.Point)
	return stagedLocation{disk: deviceOf(on), hidden: path.Join(rootOf(on), below)}, ok
}

// below is the way from the root of the mount that a hostPath lies on; empty for all others.
func (v *Volume) below() string {
	if v.Plugin != HostPathPlugin || v.Mount.ID == 0 {
		return ""
	}
	below, _ := relative(v.Mount.Point, v.Point)
	return below
}

// root is the volume's directory in its file system, without the kernel's mark.
func (v *Volume) root() string { return path.Join(rootOf(v.Mount.Mount), v.below()) }
