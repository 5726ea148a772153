// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/mountstate"
)

// fakeLook is a search of a node with some faults. It counts the searches and the calls of the observer.
type fakeLook struct {
	Observer
	found                 []fault.Finding
	over                  []string // the UIDs of pods whose time is over
	err                   error
	looks, heard, trouble int
	mu                    sync.Mutex
}

func (l *fakeLook) Look(context.Context, mountstate.Scope) (mountstate.Survey, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looks++
	return mountstate.Survey{Findings: l.found, Over: l.over}, l.err
}

func (l *fakeLook) Found(fault.Finding, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard++
}

func (l *fakeLook) Trouble(error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble++
}

// answer sets the result of the next look.
func (l *fakeLook) answer(err error, found ...fault.Finding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found, l.err = found, err
}

// awaitLook waits until so many looks were made.
func (l *fakeLook) awaitLook(looks int) {
	for {
		synctest.Wait()
		l.mu.Lock()
		made := l.looks
		l.mu.Unlock()
		if made >= looks {
			return
		}
		time.Sleep(time.Second)
	}
}
func (l *fakeLook) PodByUID(string) *corev1.Pod { return nil }

// offFor is a Guard that has the faults of one code off.
type offFor struct {
	always
	code fault.Code
}

func (o offFor) Mode(code fault.Code, _ *corev1.Pod) Mode {
	if code == o.code {
		return Off
	}
	return o.mode
}

// TestLooksAreSoonerWhileThereAreFaults: a search that has found faults is made again soon, less and less often while they stay, also while
// it fails; and rarely once they are gone.
func TestLooksAreSoonerWhileThereAreFaults(t *testing.T) {
	for _, interval := range []time.Duration{30 * time.Second, time.Minute, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			l := &fakeLook{found: []fault.Finding{{Code: fault.StuckTermination}}}
			s := &Sentinel{Mode: Observe, Guard: always{Observe}, Pods: l, Observer: l}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			go s.lookAgain(ctx, fault.SearchLeaving, Look{l, interval})
			l.awaitLook(1)
			next := func() time.Duration {
				l.mu.Lock()
				looks := l.looks
				l.mu.Unlock()
				began := time.Now()
				l.awaitLook(looks + 1)
				return time.Since(began)
			}
			within := func(took, least, most time.Duration) {
				t.Helper()
				if took < min(least, interval*4/5)-time.Second || took > min(most, interval)+time.Second {
					t.Errorf("every %s: %s between two looks, want %s to %s", interval, took, least, most)
				}
			}
			within(next(), minLookGap, minLookGap)
			within(next(), 2*minLookGap, 2*minLookGap)
			l.answer(errors.New("no kubelet"))
			within(next(), 4*minLookGap, 4*minLookGap)
			for range 3 {
				next()
			}
			within(next(), maxLookGap, maxLookGap)
			l.answer(nil)
			next()
			within(next(), interval, interval)
		})
	}
}

// TestLooksFromTimeToTime: a fault is heard of once, stays while the search fails, and is gone with the next one that does not find it. Its
// code is unknown until the first search. One that a policy has off is none.
func TestLooksFromTimeToTime(t *testing.T) {
	for _, search := range []fault.Search{fault.SearchSources, fault.SearchDevices, fault.SearchLeaving, fault.SearchStacks} {
		synctest.Test(t, func(t *testing.T) {
			codes := fault.Known().FoundBy(search)
			at := fault.Finding{Code: codes[0], Mount: fault.Mount{Point: "/a"}}
			l := &fakeLook{found: []fault.Finding{at, at, {Code: fault.StaleSubPath}}}
			s := &Sentinel{
				Mode: Observe, Guard: offFor{always{Observe}, fault.StaleSubPath}, Pods: l, Observer: l, Looks: map[fault.Search]Look{search: {l, time.Minute}},
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			go s.lookAgain(ctx, search, s.Looks[search])
			expect := func(looks, present, trouble int) {
				t.Helper()
				synctest.Wait()
				l.mu.Lock()
				defer l.mu.Unlock()
				faults, unknown := s.Faults()
				if l.looks != looks || len(faults) != present || s.Status().Present[codes[0]] != present || l.trouble != trouble || l.heard != min(looks, 1) {
					t.Errorf("%s: %d looks, %+v, %d troubles, heard of %d", search, l.looks, faults, l.trouble, l.heard)
				}
				if slices.Contains(unknown, codes[0]) == (looks > 0) && search != fault.SearchSources { // binds find those, too
					t.Errorf("%s: unknown are %v after %d looks", search, unknown, looks)
				}
			}
			time.Sleep(firstDelay - time.Second)
			expect(0, 0, 0)
			time.Sleep(2 * time.Second)
			expect(1, 1, 0)
			for looks, c := range []struct {
				err              error
				found            []fault.Finding
				present, trouble int
			}{
				{nil, l.found, 1, 0},
				{errors.New("no kubelet"), l.found, 1, 1},
				{nil, nil, 0, 1},
			} {
				l.answer(c.err, c.found...)
				l.awaitLook(looks + 2)
				expect(looks+2, c.present, c.trouble)
			}
		})
	}
}
