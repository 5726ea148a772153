// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/share"
)

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
