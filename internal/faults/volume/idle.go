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

// defaultSilence is for how long a connection must have been silent before it is aborted. A storage client is silent
// for a while when one of its servers fails over, and loses nothing: Ceph takes 20 s by default to see that a server is
// gone (osd_heartbeat_grace).
const defaultSilence = 30 * time.Second

const (
	// samplesPerSilence is how often the requests that wait are counted in that time.
	samplesPerSilence = 30
	// questionLead is how much longer than the silence a question is left unanswered: it must still wait when the
	// connection is aborted, has to be asked first, and the silence begins again whenever fewer requests wait.
	questionLead = 30 * time.Second
)

// idleMonitor watches whether a connection stays silent.
type idleMonitor struct {
	requiredSilence time.Duration
	waitingRequests func() (int, error) // how many requests wait for an answer
	startTime       time.Time
	questionWaits   chan struct{} // a question waits, and what was asked before it has been answered
	answerChannel   chan probe.Answer
	// These are about the question that waits; since is zero if none was seen to wait.
	questionAsked                    bool
	waitingSince                     time.Time
	firstCount, highestCount, counts int
	becameFewer                      string // how, the last time; empty if they never did
}

// watchConnection has a process ask the root of the mount once, and wait for longer than its connection must have been silent. The caller calls stop when
// it has done with the monitor.
func (i *Inspector) watchConnection(ctx context.Context, control *fuse.Control, found mountns.Mount, silence time.Duration) (monitor *idleMonitor, stop func()) {
	monitor = &idleMonitor{
		requiredSilence: silence, startTime: time.Now(), questionWaits: make(chan struct{}, 1), answerChannel: make(chan probe.Answer, 1),
		waitingRequests: func() (int, error) {
			c, err := control.Connection(found.Minor)
			if c.Dead {
				err = fuse.ErrNoConnection
			}
			return c.Waiting, err
		},
	}
	prober := &probe.Prober{Deadline: silence + questionLead, Runner: &i.questionRunner, Overdue: func() {
		select {
		case monitor.questionWaits <- struct{}{}:
		default: // one signal waits already, which is enough
		}
	}}
	asking, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		answers, err := prober.Ask(asking, []probe.Target{probeTarget("", found, "", false)})
		if len(answers) != 1 {
			answers = []probe.Answer{{State: probe.NotProbed, Evidence: []string{fmt.Sprint(err)}}}
		}
		monitor.answerChannel <- answers[0]
	}()
	return monitor, func() {
		cancel()
		<-ended
	}
}

// waitSilent returns once the connection has been silent for long enough. The result is Already if it is dead by now.
func (m *idleMonitor) waitSilent(ctx context.Context) (done fault.Applied, err error) {
	tick := time.NewTicker(max(m.requiredSilence/samplesPerSilence, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fault.Applied{}, fmt.Errorf("wait whether the connection stays silent for %s: %w", m.requiredSilence, context.Cause(ctx))
		case answer := <-m.answerChannel: // the question waits no more
			switch {
			case answer.State == probe.Disconnected:
				return fault.AlreadySo("was aborted already, or its daemon has ended: " + errorText(answer)), nil
			case answer.State == probe.Hung && !m.waitingSince.IsZero():
				return fault.Applied{}, m.notSilent(m.waitingSince, cmp.Or(m.becameFewer, "it answered, and another question waits"))
			case answer.State == probe.Hung || answer.State == probe.NotProbed:
				return fault.Applied{}, fmt.Errorf("%w: could not find out whether the connection is silent: %q", ErrRefused, answer.Evidence)
			}
			return fault.Applied{}, m.notSilent(time.Now(), "it answered: "+describeAnswer(answer))
		case <-m.questionWaits:
			m.questionAsked, m.waitingSince, m.counts = true, time.Time{}, 0
			err = m.countRequests()
		case <-tick.C:
			err = m.countRequests()
		}
		if err != nil || m.counts > 0 && time.Since(m.waitingSince) >= m.requiredSilence {
			return fault.Applied{}, err
		}
	}
}

// countRequests counts the requests that wait, once a question does. They become fewer if one is answered, and if a
// process that asked is killed: the kernel takes back a request that the daemon has not read (request_wait_answer in
// fs/fuse/dev.c). Both look the same, so the silence begins again.
func (m *idleMonitor) countRequests() error {
	n, err := m.waitingRequests()
	switch {
	case err != nil:
		return err
	case !m.questionAsked || m.counts == 0 && n == 0: // what waits has not got to the connection yet
		return nil
	case n == 0: // the question itself waits no more
		return m.notSilent(time.Now(), fewer(m.firstCount, n))
	case m.counts == 0:
		m.waitingSince, m.firstCount, m.highestCount = time.Now(), n, n
	case n < m.firstCount:
		m.becameFewer = fewer(m.firstCount, n)
		m.waitingSince, m.firstCount, m.highestCount, m.counts = time.Now(), n, n, 0
	}
	m.highestCount = max(m.highestCount, n)
	m.counts++
	return nil
}

func fewer(before, now int) string {
	return fmt.Sprintf("%d requests waited, and %d do now: one was answered, or its process was killed", before, now)
}

// checkLastTime counts for the last time, directly before the connection is aborted. After an error it must not be.
func (m *idleMonitor) checkLastTime() error {
	began := m.waitingSince
	if err := m.countRequests(); err != nil {
		return err
	}
	if m.waitingSince != began {
		return m.notSilent(time.Now(), m.becameFewer)
	}
	if len(m.answerChannel)+len(m.questionWaits) > 0 {
		return m.notSilent(time.Now(), "it answered at the last moment")
	}
	return nil
}

func (m *idleMonitor) notSilent(at time.Time, how string) error {
	return fmt.Errorf("%w: the connection did not stay silent: after %s, %s", ErrRefused, at.Sub(m.startTime).Round(100*time.Millisecond), how)
}

func (m *idleMonitor) String() string {
	return fmt.Sprintf("one question was not answered for %s, and each of the %d times that they were counted, %d to %d requests waited",
		time.Since(m.waitingSince).Round(100*time.Millisecond), m.counts, m.firstCount, m.highestCount)
}
