// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan"
)

// fakeOrphans has directories of pods that are gone, and records notifications of them.
type fakeOrphans struct {
	Observer
	mu              sync.Mutex
	uids            []string
	err             error
	unasked         []string
	surveys, checks int
	found           []string
	trouble         int
}

func (o *fakeOrphans) Survey(context.Context) (*orphan.Survey, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.surveys++
	s := &orphan.Survey{UnavailableSources: o.unasked}
	for _, uid := range o.uids {
		s.Pods = append(s.Pods, &orphan.Pod{Place: orphan.Place{UID: uid}, Orphaned: len(o.unasked) == 0, Unproven: o.unasked})
	}
	return s, o.err
}

func (o *fakeOrphans) GoneDirectories(_ context.Context, uids []string) (map[string]bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.checks++
	gone := map[string]bool{}
	for _, uid := range uids {
		if !slices.Contains(o.uids, uid) {
			gone[uid] = true
		}
	}
	return gone, o.err
}

// counts returns the numbers of surveys, of checks of the disk, and of errors reported.
func (o *fakeOrphans) counts() [3]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return [3]int{o.surveys, o.checks, o.trouble}
}

func (o *fakeOrphans) Found(f fault.Finding, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.found = append(o.found, f.Pod.UID)
}

func (o *fakeOrphans) Trouble(error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.trouble++
}

// TestWatchOrphansTiming: a new directory is counted within ten minutes, and a deleted one is not counted after one
// minute. A failed survey is retried soon, and then less and less often. Two agents do not stay in step.
func TestWatchOrphansTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &fakeOrphans{uids: []string{"a", "b"}}
		s := &Sentinel{Guard: always{}, Observer: o, Orphans: o}
		last, periods := time.Now(), map[time.Duration]bool{}
		go s.watchOrphans(t.Context())
		for _, step := range []struct {
			what            string
			uids            []string
			broken          error
			unasked         []string
			soonest, latest time.Duration // from the last survey to the next; if 0, a check of the disk follows within a minute
			want            int
		}{
			{"two are there", []string{"a", "b"}, nil, nil, 30 * time.Second, 30 * time.Second, 2},
			{"one has gone, another has come", []string{"b", "c"}, nil, nil, 0, 0, 1},
			{"no source can be asked", nil, errors.New("no route"), nil, 8 * time.Minute, 10 * time.Minute, 1},
			{"they are surveyed again", []string{"b", "c"}, nil, nil, 48 * time.Second, time.Minute, 2},
			{"the API server cannot be asked", []string{"b", "c"}, nil, []string{"no route"}, 8 * time.Minute, 10 * time.Minute, 2},
			{"once more", []string{"b", "c"}, nil, []string{"no route"}, 48 * time.Second, time.Minute, 2},
			{"a third time", []string{"b", "c"}, nil, []string{"no route"}, 96 * time.Second, 2 * time.Minute, 2},
			{"a fourth time", []string{"b", "c"}, nil, []string{"no route"}, 192 * time.Second, 4 * time.Minute, 2},
			{"a fifth time", []string{"b", "c"}, nil, []string{"no route"}, 384 * time.Second, 8 * time.Minute, 2},
			{"and longer", []string{"b", "c"}, nil, []string{"no route"}, 8 * time.Minute, 10 * time.Minute, 2},
			{"all have gone", nil, nil, nil, 0, 0, 0},
			{"and stay away", nil, nil, nil, 8 * time.Minute, 10 * time.Minute, 0},
			{"again no source can be asked", nil, errors.New("no route"), nil, 8 * time.Minute, 10 * time.Minute, 0},
			{"and soon one is there", []string{"d"}, nil, nil, 48 * time.Second, time.Minute, 1},
		} {
			o.mu.Lock()
			o.uids, o.err, o.unasked = step.uids, step.broken, step.unasked
			o.mu.Unlock()
			began, before, now := time.Now(), o.counts(), o.counts()
			for ; now[0] == before[0] && (step.latest > 0 || now[1] == before[1]) && time.Since(began) < time.Hour; now = o.counts() {
				time.Sleep(time.Second)
				synctest.Wait()
			}
			if now[0] > before[0] {
				after := time.Since(last)
				last = time.Now()
				periods[after] = step.latest == 10*time.Minute || periods[after]
				if after < step.soonest || after > step.latest+time.Second {
					t.Errorf("%s: a survey %s after the last one, want it after %s to %s", step.what, after, step.soonest, step.latest)
				}
			} else if time.Since(began) > time.Minute+time.Second {
				t.Errorf("%s: a check of the disk after %s, want it within a minute", step.what, time.Since(began))
			}
			if got := s.Status().Present[fault.OrphanedPodVolumes]; got != step.want {
				t.Errorf("%s: %d are counted, want %d", step.what, got, step.want)
			}
			if reported, want := now[2] > before[2], step.broken != nil || step.unasked != nil; reported != want {
				t.Errorf("%s: an error is reported: %v, want %v", step.what, reported, want)
			}
		}
		maps.DeleteFunc(periods, func(_ time.Duration, long bool) bool { return !long })
		if diff := cmp.Diff([]string{"a", "b", "c", "d"}, o.found); diff != "" || len(periods) == 1 {
			t.Errorf("periods %v, want different ones; found (-want +got):\n%s", periods, diff)
		}
	})
}
