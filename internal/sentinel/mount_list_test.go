// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/share"
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
		m := &mountList{}
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
	now, m := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), &mountList{}
	for range 1000 {
		m.reset()
		m.chargeList(now, time.Minute)
		now = now.Add(tickInterval)
	}
	if wait := m.notBefore.Sub(now); wait > cpuWindow {
		t.Errorf("no list for %v, want %v at most", wait, cpuWindow)
	}
}

// TestWatchesAreShared: the binds of one pod, or of one namespace, take no watches from others, and all together stay below what the
// kernel gives root.
func TestWatchesAreShared(t *testing.T) {
	t.Parallel()
	const watches = 8192
	s := &sourceWatcher{
		subscriptions: map[int][]subscription{}, watches: map[*bind][]int{}, owners: map[*bind]share.Owner{},
		room: share.Room{Places: watchedBinds(watches)},
	}
	taken := map[*corev1.Pod][]*bind{}
	take := func(namespace, uid string, binds int) *corev1.Pod {
		pod := &corev1.Pod{}
		pod.Namespace, pod.UID = namespace, types.UID(uid)
		for range binds {
			if b := (&bind{}); s.takePlace(b, pod) {
				taken[pod] = append(taken[pod], b)
			}
		}
		return pod
	}
	greedy := take("mallory", "m-0", 20000)
	for i := range 50 {
		take("mallory", fmt.Sprint("m-", i+1), 20000)
	}
	victim := take("shop", "v", 100)
	if n := len(taken[victim]); n != 100 {
		t.Errorf("the victim has %d of 100 places", n)
	}
	all := 0
	for _, binds := range taken {
		all += len(binds)
	}
	if most := watches / watchesPerBind / 2; all > most || len(taken[greedy]) > most/4 {
		t.Errorf("%d binds are watched, %d of one pod: at most %d", all, len(taken[greedy]), most)
	}
	for _, b := range taken[victim] {
		s.unsubscribe(b)
	}
	if n := len(taken[take("shop", "w", 100)]); n != 100 {
		t.Errorf("after the victim has gone, another pod has %d of 100 places", n)
	}
	if n := maxUserWatches(); n <= 0 {
		t.Errorf("the kernel gives root %d watches", n)
	}
}
