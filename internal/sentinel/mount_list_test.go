// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"testing"
	"time"
)

// TestMountListsKeepCPUShare: cheap lists are made at every tick. Expensive ones are made a few times in a row, and
// then no more often than the CPU share allows.
func TestMountListsKeepCPUShare(t *testing.T) {
	for spent, want := range map[time.Duration]struct {
		first time.Duration // until the fourth list
		most  int           // within an hour
	}{
		100 * time.Microsecond: {3 * tickInterval, 3600},
		9 * time.Millisecond:   {4 * tickInterval, int((time.Hour+cpuWindow)/(9*time.Second)) + 1},
		time.Second:            {4 * cpuWindow, int((time.Hour+cpuWindow)/cpuWindow) + 1},
	} {
		began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var lists []time.Duration
		m := newMountList()
		for now := began; now.Sub(began) < time.Hour; now = now.Add(tickInterval) {
			if !now.Before(m.notBefore) {
				lists = append(lists, now.Sub(began))
				m.chargeList(now, cpuShareDivisor*spent)
			}
		}
		if len(lists) > want.most || len(lists) < want.most*9/10 || lists[3] > want.first {
			t.Errorf("%v: %d lists in an hour, want %d at most; the first at %v", spent, len(lists), want.most, lists[:4])
		}
	}
}

// TestResetsDoNotDelayMountList: a process that causes one reset after another cannot delay later lists.
func TestResetsDoNotDelayMountList(t *testing.T) {
	now, m := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), newMountList()
	for range 1000 {
		m.reset()
		m.chargeList(now, time.Minute)
		now = now.Add(tickInterval)
	}
	if wait := m.notBefore.Sub(now); wait > cpuWindow {
		t.Errorf("no list for %v, want %v at most", wait, cpuWindow)
	}
}
