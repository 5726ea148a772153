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

// attic has directories of pods that are gone, and hears what is told of them.
type attic struct {
	Observer
	mu             sync.Mutex
	uids           []string
	broken         error
	unasked        []string
	surveys, looks int
	told           []string
	trouble        int
}

func (a *attic) Survey(context.Context) (*orphan.Survey, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.surveys++
	s := &orphan.Survey{Unasked: a.unasked}
	for _, uid := range a.uids {
		s.Pods = append(s.Pods, &orphan.Pod{UID: uid, Orphaned: len(a.unasked) == 0, Unproven: a.unasked})
	}
	return s, a.broken
}

func (a *attic) Gone(_ context.Context, uids []string) (map[string]bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.looks++
	gone := map[string]bool{}
	for _, uid := range uids {
		if !slices.Contains(a.uids, uid) {
			gone[uid] = true
		}
	}
	return gone, a.broken
}

// counts are those of surveys, of looks at the disk, and of trouble.
func (a *attic) counts() [3]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return [3]int{a.surveys, a.looks, a.trouble}
}

func (a *attic) Found(f fault.Finding, _ time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, f.Pod.UID)
}

func (a *attic) Trouble(error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trouble++
}

// TestCountsOrphans: what comes is counted within ten minutes, what goes is no longer counted within one. Where somebody
// cannot be asked all are looked for again soon, and less and less often as long as that stays so. No two agents keep step.
func TestCountsOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &attic{uids: []string{"a", "b"}}
		s := &Sentinel{Observer: a, Orphans: a}
		last, periods := time.Now(), map[time.Duration]bool{}
		go s.watchOrphans(t.Context())
		for _, step := range []struct {
			what            string
			uids            []string
			broken          error
			unasked         []string
			soonest, latest time.Duration // after the last survey the next one comes; none: a look at the disk comes, within a minute
			want            int
		}{
			{"two are there", []string{"a", "b"}, nil, nil, 30 * time.Second, 30 * time.Second, 2},
			{"one has gone, another has come", []string{"b", "c"}, nil, nil, 0, 0, 1},
			{"nobody can be asked", nil, errors.New("no route"), nil, 8 * time.Minute, 10 * time.Minute, 1},
			{"they are looked for again", []string{"b", "c"}, nil, nil, 48 * time.Second, time.Minute, 2},
			{"the API server cannot be asked", []string{"b", "c"}, nil, []string{"no route"}, 8 * time.Minute, 10 * time.Minute, 2},
			{"once more", []string{"b", "c"}, nil, []string{"no route"}, 48 * time.Second, time.Minute, 2},
			{"a third time", []string{"b", "c"}, nil, []string{"no route"}, 96 * time.Second, 2 * time.Minute, 2},
			{"a fourth time", []string{"b", "c"}, nil, []string{"no route"}, 192 * time.Second, 4 * time.Minute, 2},
			{"a fifth time", []string{"b", "c"}, nil, []string{"no route"}, 384 * time.Second, 8 * time.Minute, 2},
			{"and longer", []string{"b", "c"}, nil, []string{"no route"}, 8 * time.Minute, 10 * time.Minute, 2},
			{"all have gone", nil, nil, nil, 0, 0, 0},
			{"and stay away", nil, nil, nil, 8 * time.Minute, 10 * time.Minute, 0},
			{"again nobody can be asked", nil, errors.New("no route"), nil, 8 * time.Minute, 10 * time.Minute, 0},
			{"and soon one is there", []string{"d"}, nil, nil, 48 * time.Second, time.Minute, 1},
		} {
			a.mu.Lock()
			a.uids, a.broken, a.unasked = step.uids, step.broken, step.unasked
			a.mu.Unlock()
			began, before, now := time.Now(), a.counts(), a.counts()
			for ; now[0] == before[0] && (step.latest > 0 || now[1] == before[1]) && time.Since(began) < time.Hour; now = a.counts() {
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
				t.Errorf("%s: a look at the disk after %s, want it within a minute", step.what, time.Since(began))
			}
			if got := s.Status().Present[fault.OrphanedPodVolumes]; got != step.want {
				t.Errorf("%s: %d are counted, want %d", step.what, got, step.want)
			}
			if told, want := now[2] > before[2], step.broken != nil || step.unasked != nil; told != want {
				t.Errorf("%s: trouble is told of: %v, want %v", step.what, told, want)
			}
		}
		maps.DeleteFunc(periods, func(_ time.Duration, long bool) bool { return !long })
		if diff := cmp.Diff([]string{"a", "b", "c", "d"}, a.told); diff != "" || len(periods) == 1 {
			t.Errorf("periods %v, want different ones; told (-want +got):\n%s", periods, diff)
		}
	})
}
