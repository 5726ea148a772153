// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
)

// defaultSilence is for how long a connection must have been silent before it is aborted. A storage client is silent for a
// while when one of its servers fails over, and loses nothing: Ceph takes 20 s by default to see that a server is gone
// (osd_heartbeat_grace).
const defaultSilence = 30 * time.Second

const (
	// samples is how often the requests that wait are counted in that time.
	samples = 30
	// lead is how much longer than the silence a question is left unanswered: it must still wait when the connection is
	// aborted, and has to be asked first.
	lead = 5 * time.Second
)

// idleMonitor watches whether a connection stays silent.
type idleMonitor struct {
	wanted  time.Duration
	waiting func() (int, error) // how many requests wait for an answer
	began   time.Time
	overdue chan struct{} // a question waits, and what was asked before it has been answered
	result  chan probe.Answer
	// These are about the question that waits; since is zero if none was seen to wait.
	asked               bool
	since               time.Time
	first, most, counts int
}

// abortWhenIdle has a process ask the mount, waits for as long as the connection must have been silent, and calls act if it
// was. act must call check directly before it acts. An error means that the connection must not be aborted.
func (i *Inspector) abortWhenIdle(ctx context.Context, control *fuse.Control, m mountns.Mount,
	act func(check func() error) error) (fault.Applied, error) {
	s := &idleMonitor{
		wanted: cmp.Or(i.Silence, defaultSilence), began: time.Now(), overdue: make(chan struct{}, 1), result: make(chan probe.Answer, 1),
		waiting: func() (int, error) {
			c, err := control.Connection(m.Minor)
			if c.Dead {
				err = fuse.ErrNoConnection
			}
			return c.Waiting, err
		},
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) < s.wanted {
		return fault.Applied{}, fmt.Errorf("%w: a connection must be silent for %s before it is aborted, and only %s are left for that", ErrRefused,
			s.wanted, time.Until(end).Round(100*time.Millisecond))
	}
	asking, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.result <- i.askAlone(asking, m, s)
	}()
	defer func() {
		stop()
		<-ended
	}()
	if done, err := s.wait(ctx); err != nil || done.Already {
		return done, err
	}
	if err := act(s.check); err != nil {
		return fault.Applied{}, err
	}
	return fault.Applied{Message: fmt.Sprintf("aborted FUSE connection %d: %s", m.Minor, s)}, nil
}

// askAlone asks the root of the mount once, and waits longer than the connection must have been silent.
func (i *Inspector) askAlone(ctx context.Context, m mountns.Mount, s *idleMonitor) probe.Answer {
	prober := &probe.Prober{Deadline: s.wanted + lead, Runner: &i.askers, Overdue: func() {
		select {
		case s.overdue <- struct{}{}:
		default: // one that is not received yet is enough
		}
	}}
	answers, err := prober.Ask(ctx, []probe.Target{probeTarget("", m, "", false)})
	if len(answers) != 1 {
		return probe.Answer{State: probe.Unasked, Evidence: []string{fmt.Sprint(err)}}
	}
	return answers[0]
}

// wait returns once the connection has been silent for long enough. The result is Already if it is dead by now.
func (s *idleMonitor) wait(ctx context.Context) (done fault.Applied, err error) {
	tick := time.NewTicker(max(s.wanted/samples, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fault.Applied{}, fmt.Errorf("wait whether the connection stays silent for %s: %w", s.wanted, context.Cause(ctx))
		case a := <-s.result:
			return s.answered(a)
		case <-s.overdue:
			s.asked, s.since, s.counts = true, time.Time{}, 0
			err = s.count()
		case <-tick.C:
			err = s.count()
		}
		if err != nil || s.counts > 0 && time.Since(s.since) >= s.wanted {
			return fault.Applied{}, err
		}
	}
}

// answered is for a question that waits no more.
func (s *idleMonitor) answered(a probe.Answer) (done fault.Applied, err error) {
	switch {
	case a.State == probe.Disconnected:
		return fault.AlreadySo("was aborted already, or its daemon has ended: " + cause(a)), nil
	case a.State == probe.Hung && !s.since.IsZero():
		return fault.Applied{}, s.again(s.since, "to ask another question")
	case a.State == probe.Hung || a.State == probe.Unasked:
		return fault.Applied{}, fmt.Errorf("%w: whether the connection is silent could not be found out: %q", ErrRefused, a.Evidence)
	}
	return fault.Applied{}, s.again(time.Now(), describeAnswer(a))
}

// count counts the requests that wait, once a question does. They do not become fewer while nothing is answered.
func (s *idleMonitor) count() error {
	n, err := s.waiting()
	switch {
	case err != nil:
		return err
	case !s.asked || s.counts == 0 && n == 0: // what waits has not got to the connection yet
		return nil
	case s.counts == 0:
		s.since, s.first, s.most = time.Now(), n, n
	case n < s.first:
		return s.again(time.Now(), fmt.Sprintf("%d requests waited, and %d do now", s.first, n))
	}
	s.most = max(s.most, n)
	s.counts++
	return nil
}

// check counts for the last time.
func (s *idleMonitor) check() error {
	if err := s.count(); err != nil {
		return err
	}
	if len(s.result)+len(s.overdue) > 0 {
		return s.again(time.Now(), "at the last moment")
	}
	return nil
}

func (s *idleMonitor) again(at time.Time, how string) error {
	return fmt.Errorf("%w: the connection answered again after %s: %s", ErrRefused, at.Sub(s.began).Round(100*time.Millisecond), how)
}

func (s *idleMonitor) String() string {
	return fmt.Sprintf("one question was not answered for %s, and each of the %d times that they were counted, %d to %d requests waited",
		time.Since(s.since).Round(100*time.Millisecond), s.counts, s.first, s.most)
}
