// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

// pass is one call of Ask.
type pass struct {
	*Prober
	targets []Target
	answers []Answer // those with a state are final
	began   time.Time
	ended   time.Time // when there were no more answers
	control *fuse.Control
	found   []found
	groups  []*group
	room    *room

	mu   sync.Mutex           // of what the processes say
	late map[int]lateQuestion // by target
}

// group is the targets on one file system.
type group struct {
	device    uint64
	owner     string
	proven    bool // it has answered when it was asked last
	turn      int  // of the owner's: lower ones are asked first
	questions []question
	lost      *subprocess.LostError // the process that has asked, if that is lost
}

// lateQuestion is a question that has not been answered for a while.
type lateQuestion struct {
	overdue
	since    time.Time
	requests int // that wait for the server; 0 also if that is not known
}

func (p *Prober) newPass(targets []Target) *pass {
	s := &pass{
		Prober: p, targets: targets, answers: make([]Answer, len(targets)), began: time.Now(),
		found: make([]found, len(targets)), late: map[int]lateQuestion{},
	}
	p.dropOldWaiters()
	s.room = p.newRoom()
	for i := range s.answers {
		s.answers[i].Target = i
	}
	s.control, _ = fuse.Open() // without it there are fewer hints
	return s
}

func (s *pass) close() {
	if s.control != nil {
		_ = s.control.Close() // nothing was written
	}
}

// askAll has processes ask what can be asked: one is for file systems that have answered when they were asked last, so that
// no other keeps them waiting.
func (s *pass) askAll(ctx context.Context) error {
	s.group()
	var proven, others []*group
	for _, g := range s.groups {
		if g.proven {
			proven = append(proven, g)
		} else {
			others = append(others, g)
		}
	}
	var errs [2]error
	var done sync.WaitGroup
	done.Go(func() { errs[0] = s.askSome(ctx, proven, s.room.proven()) })
	done.Go(func() { errs[1] = s.askSome(ctx, others, s.room.others()) })
	done.Wait()
	s.ended = time.Now()
	return errors.Join(errs[:]...)
}

// askSome has one process ask.
func (s *pass) askSome(ctx context.Context, groups []*group, r request) error {
	for _, g := range groups {
		r.Groups = append(r.Groups, g.questions)
		r.Bind = r.Bind || slices.ContainsFunc(g.questions, func(q question) bool { return q.Bind })
	}
	left := s.deadline() - time.Since(s.began)
	if len(r.Groups) == 0 || left <= 0 {
		return nil
	}
	err := s.runner().Run(ctx, subprocess.Options{Job: Job.Name, Input: r, Deadline: left, Each: s.readReply})
	lost, _ := errors.AsType[*subprocess.LostError](err)
	for _, g := range groups {
		g.lost = lost
	}
	switch {
	case errors.Is(err, subprocess.ErrDeadline):
		return nil
	case errors.Is(err, subprocess.ErrTooMany):
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, g := range groups {
			for _, q := range g.questions {
				if s.asked(q.Target) {
					s.conclude(q.Target, Unasked, 0, "not asked: as many processes of earlier passes wait as there may be")
				}
			}
		}
		return nil
	}
	return err
}

// readReply takes in what the process says.
func (s *pass) readReply(text json.RawMessage) error {
	var r reply
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Answer != nil && s.asked(r.Answer.Target):
		s.answer(*r.Answer)
	case r.Overdue != nil && s.asked(r.Overdue.Target):
		i := r.Overdue.Target
		l, again := s.late[i]
		if !again {
			l.since = time.Now().Add(-patience)
		}
		l.overdue, l.requests = *r.Overdue, s.requests(i)
		s.late[i] = l
		if s.Overdue != nil {
			s.Overdue()
		}
	}
	return nil
}

// asked reports whether there is such a target and no answer yet.
func (s *pass) asked(target int) bool {
	return target >= 0 && target < len(s.answers) && s.answers[target].State == ""
}

// answer adds what the process has found out to what is known already.
func (s *pass) answer(from Answer) {
	to := &s.answers[from.Target]
	to.State, to.Errno, to.Bindable, to.Took = from.State, from.Errno, from.Bindable, from.Took
	to.ReadOnly, to.Stat = to.ReadOnly || from.ReadOnly, from.Stat
	to.Evidence = append(to.Evidence, from.Evidence...)
	delete(s.late, from.Target)
}

// settle finds a state for what was not answered.
func (s *pass) settle() {
	clear(s.slow)
	for _, g := range s.groups {
		s.settleGroup(g)
	}
	s.unasked(fmt.Sprintf("there was no time or no thread left within %v", s.deadline()))
}

// settleGroup reports whether the file system hangs: it was waited for for at
// least half the time. It remembers the waiting thread, and whether the file system
// has answered.
func (s *pass) settleGroup(g *group) {
	var at = -1
	for _, q := range g.questions {
		l, is := s.late[q.Target]
		switch {
		case !is || !s.asked(q.Target):
		case l.Way:
			s.settleWay(g, l)
		default:
			at = q.Target
		}
	}
	if at < 0 {
		if slices.ContainsFunc(g.questions, func(q question) bool { return !s.asked(q.Target) && s.answers[q.Target].State != Unasked }) {
			s.answered[g.device] = true
		}
		return
	}
	l := s.late[at]
	s.answers[at].Stat = l.Stat
	s.slow[g.device] = true
	delete(s.answered, g.device)
	if g.lost != nil {
		s.waiting[g.device] = s.waiterOf(g, l)
	}
	waited := s.ended.Sub(l.since)
	if waited < s.deadline()/2 {
		s.conclude(at, Unasked, waited, append(s.silence(l, waited), "that is too short to tell")...)
		return
	}
	s.conclude(at, Hung, waited, s.silence(l, waited)...)
	for _, q := range g.questions {
		if s.asked(q.Target) {
			s.conclude(q.Target, Hung, waited, "not asked: the same file system does not answer at "+strconv.Quote(s.targets[at].Point))
		}
	}
}

// settleWay is for a mount that was not come to: that says nothing about it.
func (s *pass) settleWay(g *group, l lateQuestion) {
	if g.lost != nil {
		s.blocked[s.wayTo(l.Target)] = s.waiterOf(g, l)
	}
	waited := s.ended.Sub(l.since)
	s.conclude(l.Target, Unasked, waited, s.silence(l, waited)...)
}

func (s *pass) waiterOf(g *group, l lateQuestion) waiter {
	return waiter{
		pid: g.lost.PID, thread: l.Thread, gone: g.lost.Gone, since: l.since, question: l.Question, owner: s.targets[l.Target].Owner,
	}
}

// silence is the evidence of no answer.
func (s *pass) silence(l lateQuestion, waited time.Duration) []string {
	said := fmt.Sprintf("%s: no answer within %v", l.Question, waited.Round(time.Millisecond))
	return append([]string{said}, queue(l.requests)...)
}

// queue says how many requests wait for a server, where any are known.
func queue(requests int) []string {
	switch requests {
	case 0:
		return nil
	case 1:
		return []string{"1 request waits unanswered"}
	}
	return []string{fmt.Sprintf("%d requests wait unanswered", requests)}
}

// unasked is the state of all that is not known by now.
func (s *pass) unasked(why string) {
	for i := range s.answers {
		if s.asked(i) {
			s.conclude(i, Unasked, 0, "not asked: "+why)
		}
	}
}

func (s *pass) conclude(target int, state State, took time.Duration, evidence ...string) {
	a := &s.answers[target]
	a.State, a.Took = state, took
	a.Evidence = append(a.Evidence, evidence...)
}
