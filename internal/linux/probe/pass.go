// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

// pass is one call of Ask.
type pass struct {
	prober *Prober
	targetMounts
	answers   answerSet
	startTime time.Time
	groups    []*targetGroup
	room      *threadRoom

	mu            sync.Mutex           // of the answers of the processes
	lateQuestions map[int]lateQuestion // by target
}

// targetGroup is the targets on one file system.
type targetGroup struct {
	device         uint64
	owner          string
	answeredBefore bool  // it answered the last question
	requestsWait   bool  // for its server, which is not gone
	silence        State // of its last question; empty: that was answered
	trusted        bool  // the answer of the pass before is not too old
	ownerTurn      int   // among the owner's groups: lower ones come first
	questions      []question
	lostProcess    *subprocess.LostError // the process that has asked, if that is lost
	askedUntil     time.Time
}

// silentState is the state of a file system that does not answer the question.
func (o overdue) silentState() State {
	if o.Write {
		return Frozen
	}
	return Hung
}

// lateQuestion is a question that has not been answered for a while.
type lateQuestion struct {
	overdue
	since    time.Time
	requests int // that wait for the server; 0 also if that is not known
}

func (p *Prober) newPass(targets []Target) *pass {
	control, _ := fuse.Open() // without it there are fewer hints
	s := &pass{
		prober: p, targetMounts: targetMounts{targets: targets, found: make([]foundMount, len(targets)), control: control},
		answers: make(answerSet, len(targets)), startTime: time.Now(),
		lateQuestions: map[int]lateQuestion{},
	}
	// The threads that wait no more are forgotten.
	maps.DeleteFunc(p.waitingThreads, func(_ uint64, w waitingThread) bool { return !w.there() })
	maps.DeleteFunc(p.blockedWays, func(_ pathToMount, w waitingThread) bool { return !w.there() })
	if len(p.answeringFileSystems) > maxRememberedAnswers {
		clear(p.answeringFileSystems)
	}
	p.forgetSilences()
	s.room = p.newRoom()
	for i := range s.answers {
		s.answers[i].Target = i
	}
	return s
}

// askAll starts the processes that ask the groups. One is for file systems that answered their last question, so that no other
// keeps them waiting. One is for those that did not answer their last question: they have half the time, so that no file system that
// hangs delays all looks by the whole time.
func (s *pass) askAll(ctx context.Context) error {
	s.takeTurns()
	var proven, silent, others []*targetGroup
	for _, g := range s.groups {
		switch {
		case g.answeredBefore:
			proven = append(proven, g)
		case g.hasHalfTime():
			silent = append(silent, g)
		default:
			others = append(others, g)
		}
	}
	var errs [3]error
	var done sync.WaitGroup
	all := s.prober.deadlineOrDefault()
	done.Go(func() { errs[0] = s.askSome(ctx, proven, s.room.requestForAnswering(), all) })
	done.Go(func() { errs[1] = s.askSome(ctx, others, s.room.requestForOthers(), all) })
	done.Go(func() { errs[2] = s.askSome(ctx, silent, s.room.requestForOthers(), all/2) })
	done.Wait()
	return errors.Join(errs[:]...)
}

// askSome has one process ask, until the time from the start of the pass is over.
func (s *pass) askSome(ctx context.Context, groups []*targetGroup, r request, within time.Duration) error {
	for _, g := range groups {
		r.Groups = append(r.Groups, g.questions)
		r.Bind = r.Bind || slices.ContainsFunc(g.questions, func(q question) bool { return q.Bind })
	}
	left := within - time.Since(s.startTime)
	if len(r.Groups) == 0 || left <= 0 {
		return nil
	}
	err := cmp.Or(s.prober.Runner, &s.prober.ownRunner).Run(ctx, subprocess.Options{Job: Job.Name, Input: r, Deadline: left, Each: s.readReply})
	lost, _ := errors.AsType[*subprocess.LostError](err)
	for _, g := range groups {
		g.lostProcess, g.askedUntil = lost, time.Now()
	}
	switch {
	case errors.Is(err, subprocess.ErrDeadline):
		return nil
	case errors.Is(err, subprocess.ErrTooMany):
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, g := range groups {
			for _, q := range g.questions {
				if s.answers.awaits(q.Target) {
					s.answers.setState(q.Target, NotProbed, 0, "not asked: as many processes of earlier passes wait as there may be")
				}
			}
		}
		return nil
	}
	return err
}

// readReply takes in a reply of the process.
func (s *pass) readReply(text json.RawMessage) error {
	var r reply
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Answer != nil && s.answers.awaits(r.Answer.Target):
		from, to := r.Answer, &s.answers[r.Answer.Target]
		to.State, to.Errno, to.Bindable, to.Took = from.State, from.Errno, from.Bindable, from.Took
		to.ReadOnly, to.Stat = to.ReadOnly || from.ReadOnly, from.Stat
		to.Evidence = append(to.Evidence, from.Evidence...)
		delete(s.lateQuestions, from.Target)
	case r.Overdue != nil && s.answers.awaits(r.Overdue.Target):
		i := r.Overdue.Target
		l, again := s.lateQuestions[i]
		if !again {
			l.since = time.Now().Add(-lateAfter)
		}
		l.overdue, l.requests = *r.Overdue, s.waitingRequests(i)
		s.lateQuestions[i] = l
		if s.prober.Overdue != nil {
			s.prober.Overdue()
		}
	}
	return nil
}

// settleGroup decides whether the file system hangs: the wait took at least half the time that it had. It remembers the waiting
// thread, and whether the file system has answered.
func (s *pass) settleGroup(group *targetGroup) {
	var at = -1
	for _, q := range group.questions {
		l, is := s.lateQuestions[q.Target]
		switch {
		case !is || !s.answers.awaits(q.Target):
		case l.Way:
			// The mount was not reached. This shows nothing about it.
			if group.lostProcess != nil {
				s.prober.blockedWays[s.wayToMount(l.Target)] = s.waiterOf(group, l)
			}
			waited := group.askedUntil.Sub(l.since)
			s.answers.setState(l.Target, NotProbed, waited, s.silenceEvidence(l, waited)...)
		default:
			at = q.Target
		}
	}
	if at < 0 {
		if slices.ContainsFunc(group.questions, func(q question) bool {
			return !s.answers.awaits(q.Target) &&
				s.answers[q.Target].State != NotProbed
		}) {
			s.prober.answeringFileSystems[group.device] = true
			delete(s.prober.silences, group.device)
		}
		return
	}
	late := s.lateQuestions[at]
	late.requests = max(late.requests, s.waitingRequests(at)) // a question may be late before it is sent
	s.answers[at].Stat = late.Stat
	delete(s.prober.answeringFileSystems, group.device)
	defer func() {
		if known := s.answers[at]; group.silence == "" || known.State != NotProbed { // else the earlier silence says more
			s.prober.silences[group.device] = silence{known, time.Now()}
		}
	}()
	if group.lostProcess != nil {
		s.prober.waitingThreads[group.device] = s.waiterOf(group, late)
	}
	waited, needed := group.askedUntil.Sub(late.since), s.prober.deadlineOrDefault()/2
	if group.hasHalfTime() {
		needed /= 2
	}
	if waited < needed {
		s.answers.setState(at, NotProbed, waited, append(s.silenceEvidence(late, waited), "that is too short for a verdict")...)
		return
	}
	state, said := s.stateOfSilence(group, late), s.silenceEvidence(late, waited)
	if group.silence == Silent {
		said = append(said, fmt.Sprintf("%v ago it did not answer, either", time.Since(s.prober.silences[group.device].at).Round(100*time.Millisecond)))
	}
	s.answers.setState(at, state, waited, said...)
	for _, q := range group.questions {
		if s.answers.awaits(q.Target) {
			s.answers.setState(q.Target, state, waited, notAskedText(s.targets[at].Point))
		}
	}
}

// notAskedText says of a mount that another one of its file system shows that it does not answer.
func notAskedText(point string) string {
	return "not asked: the same file system does not answer at " + strconv.Quote(point)
}

func (s *pass) waiterOf(g *targetGroup, l lateQuestion) waitingThread {
	return waitingThread{
		pid: g.lostProcess.PID, thread: l.Thread, gone: g.lostProcess.Gone, since: l.since, question: l.Question, owner: s.targets[l.Target].Owner,
		state: l.silentState(),
	}
}

// silenceEvidence is the evidence of no answer.
func (s *pass) silenceEvidence(l lateQuestion, waited time.Duration) []string {
	said := fmt.Sprintf("%s: no answer within %v", l.Question, waited.Round(time.Millisecond))
	return append([]string{said}, describeQueue(l.requests)...)
}

// describeQueue says how many requests wait for a server, where any are known.
func describeQueue(requests int) []string {
	switch requests {
	case 0:
		return nil
	case 1:
		return []string{"1 request waits unanswered"}
	}
	return []string{fmt.Sprintf("%d requests wait unanswered", requests)}
}
