// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// newTestJob is a job that may give up on most calls, with its output.
func newTestJob(most int, known ...string) (*job, *[]jobOutput) {
	all := &[]jobOutput{}
	j := &job{jobOrder: jobOrder{MaxUnanswered: most, KnownUnanswered: known}, startTime: time.Now(), emit: func(v any) error {
		*all = append(*all, v.(jobOutput))
		return nil
	}}
	return j, all
}

// TestJobGivesUpOnFew has everything hang that a job looks at.
func TestJobGivesUpOnFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j, all := newTestJob(maxUnansweredPerJob, "0")
		answer, asked, begin := make(chan struct{}), atomic.Int64{}, time.Now()
		for i := range 100 {
			for range 2 {
				_, err := callWithin(t.Context(), j, strconv.Itoa(i), namespaceTimeout, func() (int, error) {
					asked.Add(1)
					<-answer
					return 0, nil
				})
				if !errors.Is(err, errUnanswered) {
					t.Fatalf("%v, want that it does not answer", err)
				}
			}
		}
		if n := asked.Load(); n != maxUnansweredPerJob || time.Since(begin) != maxUnansweredPerJob*namespaceTimeout {
			t.Errorf("%d were asked, which took %v", n, time.Since(begin))
		}
		own := process{os.Getpid(), started(os.Getpid())}
		for i, line := range *all {
			if want := (unansweredCall{strconv.Itoa(i + 1), own}); line.Stuck == nil || *line.Stuck != want {
				t.Errorf("line %d: %+v, want %+v", i, line.Stuck, want)
			}
		}
		if len(*all) != maxUnansweredPerJob {
			t.Errorf("%d lines", len(*all))
		}
		close(answer)
	})
}

// TestJobEnds: after some time a job asks no more.
func TestJobEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j, _ := newTestJob(maxUnansweredPerJob)
		own := func() (int, error) { return 7, os.ErrExist }
		if n, err := callWithin(t.Context(), j, "1", namespaceTimeout, own); n != 7 || !errors.Is(err, os.ErrExist) {
			t.Errorf("%d, %v, want what the call returns", n, err)
		}
		time.Sleep(jobTimeout + 1)
		if _, err := callWithin(t.Context(), j, "1", namespaceTimeout, own); !errors.Is(err, errUnanswered) {
			t.Errorf("%v, want that it is not asked", err)
		}
	})
}

// TestUnansweredCallsAreRemembered: it lasts until the process that waits has ended.
func TestUnansweredCallsAreRemembered(t *testing.T) {
	t.Parallel()
	own := process{os.Getpid(), started(os.Getpid())}
	var m memory
	for _, s := range []unansweredCall{{"1", own}, {"ended", process{own.PID, own.Started + "0"}}, {"mnt:[7]", own}, {"not read", process{own.PID, ""}}} {
		m.note(s)
	}
	if keys := m.waitFor(); !slices.Equal(keys, []string{"1", "mnt:[7]"}) || len(m.stuck) != 2 {
		t.Errorf("%q, want those that a process waits for", keys)
	}
}
