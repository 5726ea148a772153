// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package reap

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRepeat(t *testing.T) {
	t.Parallel()
	broken := errors.New("no /proc")
	for name, c := range map[string]struct {
		found [][]int // by call; the last one for good
		err   error
		calls int // 0: until the limit
		why   string
	}{
		"none":            {found: [][]int{nil}, calls: 2},
		"one that starts": {found: [][]int{{1}, nil, {2}, nil}, calls: 5},
		"one that stays":  {found: [][]int{{4194305}}, why: `["4194305"]: still running`},
		"cannot look":     {found: [][]int{nil}, err: broken, calls: 1, why: "no /proc"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, calls := time.Now(), 0
				err := repeat(time.Second, func() ([]int, error) {
					calls++
					return c.found[min(calls, len(c.found))-1], c.err
				})
				if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
					t.Errorf("error %v, want %q", err, c.why)
				}
				if c.calls != 0 && calls != c.calls || c.calls == 0 && time.Since(began) < time.Second {
					t.Errorf("%d calls in %v, want %d", calls, time.Since(began), c.calls)
				}
			})
		})
	}
}

// TestLeftoverIsTriedOnlyForAMoment has a process that never ends: the second look at its folder does not wait as the first one
// did, and a folder whose processes have ended by then is as any other.
func TestLeftoverIsTriedOnlyForAMoment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		found := []int{4194305} // no process has that ID
		kill := func() ([]int, error) { return found, nil }
		for _, want := range []time.Duration{maxEnd, maxEndLeft} {
			began := time.Now()
			err := within(dir, kill)
			if _, ok := errors.AsType[*AliveError](err); !ok || time.Since(began) < want || time.Since(began) > want+time.Second {
				t.Errorf("%v after %v, want it after %v", err, time.Since(began), want)
			}
		}
		found = nil
		if err := within(dir, kill); err != nil {
			t.Error(err)
		}
	})
}
