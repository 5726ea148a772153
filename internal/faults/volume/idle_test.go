// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/probe"
)

// TestRequestsThatWait has them counted again and again.
func TestRequestsThatWait(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	for name, c := range map[string]struct {
		counts []int
		err    error // of a count after those
		want   error
		says   string
	}{
		"the same":            {[]int{3, 3, 3}, nil, nil, "each of the 3 times that they were counted, 3 to 3 requests"},
		"more and more":       {[]int{1, 5, 1, 9}, nil, nil, "1 to 9 requests"},
		"none at first":       {[]int{0, 0, 2, 2}, nil, nil, "each of the 2 times that they were counted, 2 to 2 requests"},
		"one ended":           {[]int{3, 4, 2, 2, 3}, nil, nil, "each of the 3 times that they were counted, 2 to 3 requests"},
		"all were answered":   {[]int{1, 0}, nil, ErrRefused, "did not stay silent: after 12s, 1 requests waited, and 0 do now"},
		"they cannot be read": {[]int{1}, lost, lost, "lost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			counts := c.counts
			monitor := &idleMonitor{questionAsked: true, startTime: time.Now().Add(-12 * time.Second), waitingRequests: func() (int, error) {
				if len(counts) == 0 {
					return 0, c.err
				}
				n := counts[0]
				counts = counts[1:]
				return n, nil
			}}
			var err error
			for range len(c.counts) {
				if err = monitor.countRequests(); err != nil {
					break
				}
			}
			if err == nil && c.err != nil {
				err = monitor.countRequests()
			}
			said := monitor.String()
			if err != nil {
				said = err.Error()
			}
			if !errors.Is(err, c.want) || !strings.Contains(said, c.says) {
				t.Errorf("%v, %q, want %v and %q", err, said, c.want, c.says)
			}
		})
	}
}

// TestLastCountBeforeAbort: an answer, another question or a lower count that comes last stops the abort.
func TestLastCountBeforeAbort(t *testing.T) {
	t.Parallel()
	for name, heard := range map[string]func(s *idleMonitor){
		"nothing":          func(*idleMonitor) {},
		"an answer":        func(s *idleMonitor) { s.answerChannel <- probe.Answer{State: probe.Alive} },
		"another question": func(s *idleMonitor) { s.questionWaits <- struct{}{} },
		"fewer wait":       func(s *idleMonitor) { s.firstCount = 2 },
	} {
		s := &idleMonitor{questionAsked: true, waitingSince: time.Now(), firstCount: 1, highestCount: 1, counts: 1, questionWaits: make(chan struct{}, 1),
			answerChannel: make(chan probe.Answer, 1), waitingRequests: func() (int, error) { return 1, nil }}
		heard(s)
		if err := s.checkLastTime(); errors.Is(err, ErrRefused) != (name != "nothing") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// answeredMonitor is one whose question was answered.
func answeredMonitor(state probe.State, began time.Time) *idleMonitor {
	m := &idleMonitor{requiredSilence: time.Hour, startTime: began, answerChannel: make(chan probe.Answer, 1)}
	m.answerChannel <- probe.Answer{State: state}
	return m
}

// TestAnswersWhileItIsWaited: only a connection that is dead anyway is not refused.
func TestAnswersWhileItIsWaited(t *testing.T) {
	t.Parallel()
	for state, says := range map[probe.State]string{
		probe.Alive: "it answered: ", probe.Stale: "it answered: ",
		probe.Hung: "could not find out", probe.NotProbed: "could not find out",
	} {
		s := answeredMonitor(state, time.Now())
		if done, err := s.waitSilent(t.Context()); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v, %v, want %q", state, done, err, says)
		}
	}
	s := answeredMonitor(probe.Hung, time.Now().Add(-7*time.Second))
	s.waitingSince = time.Now()
	if _, err := s.waitSilent(t.Context()); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "after 7s") {
		t.Errorf("another question waits since a while: %v", err)
	}
	if done, err := answeredMonitor(probe.Disconnected, time.Now()).waitSilent(t.Context()); err != nil || !done.Already {
		t.Errorf("dead: %+v, %v", done, err)
	}
}
