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

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/orphan"
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

func (a *attic) Found(f fault.Finding, _ time.Duration) { a.told = append(a.told, f.Pod.UID) }

func (a *attic) Trouble(error) { a.trouble++ }

// TestCountsOrphans: what comes is counted within ten minutes, what goes is no longer counted within one. Where somebody
// cannot be asked all are looked for again soon, and less and less often as long as that stays so.
func TestCountsOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &attic{uids: []string{"a", "b"}}
		s := &Sentinel{Observer: a, Orphans: a}
		go s.count(t.Context())
		for _, step := range []struct {
			what           string
			uids           []string
			broken         error
			unasked        []string
			after          time.Duration
			want           int
			surveys, looks int // so far
		}{
			{"at first", []string{"a", "b"}, nil, nil, 29 * time.Second, 0, 0, 0},
			{"two were there", []string{"a", "b"}, nil, nil, 2 * time.Second, 2, 1, 0},
			{"one has gone, another has come", []string{"b", "c"}, nil, nil, time.Minute, 1, 1, 1},
			{"nobody can be asked", nil, errors.New("no route"), nil, 9 * time.Minute, 1, 2, 9},
			{"they are looked for again", []string{"b", "c"}, nil, nil, time.Minute, 2, 3, 9},
			{"the API server cannot be asked", []string{"b", "c"}, nil, []string{"no route"}, 10 * time.Minute, 2, 4, 18},
			{"for a quarter of an hour", []string{"b", "c"}, nil, []string{"no route"}, 15 * time.Minute, 2, 8, 29},
			{"and longer", []string{"b", "c"}, nil, []string{"no route"}, 20 * time.Minute, 2, 10, 47},
			{"all have gone", nil, nil, nil, time.Minute, 0, 10, 48},
			{"and stay away", nil, nil, nil, 9 * time.Minute, 0, 11, 48},
			{"once more nobody can be asked", nil, errors.New("no route"), nil, 10 * time.Minute, 0, 12, 48},
			{"and soon one is there", []string{"d"}, nil, nil, time.Minute, 1, 13, 48},
		} {
			a.mu.Lock()
			a.uids, a.broken, a.unasked = step.uids, step.broken, step.unasked
			a.mu.Unlock()
			time.Sleep(step.after)
			synctest.Wait()
			a.mu.Lock()
			if got := s.Sight().Present[fault.OrphanedPodVolumes]; got != step.want || a.surveys != step.surveys || a.looks != step.looks {
				t.Errorf("%s: %d, after %d surveys and %d looks; want %d, %d and %d", step.what, got, a.surveys, a.looks, step.want,
					step.surveys, step.looks)
			}
			a.mu.Unlock()
		}
		if diff := cmp.Diff([]string{"a", "b", "c", "d"}, a.told); diff != "" || a.trouble != 17 {
			t.Errorf("trouble %d times, told (-want +got):\n%s", a.trouble, diff)
		}
	})
}
