// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/share"
)

// TestPollQueuesPendingBinds: a healthy bind with a watch is queued at a tick only after an event. A bind that has a
// fault, no watch or no inspection yet is queued at each tick and counted.
func TestPollQueuesPendingBinds(t *testing.T) {
	pods := newDeadVolumes(0)
	pods.pod.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "app"}}}
	w := &bindWatcher{
		sentinel: &Sentinel{Guard: always{}, Pods: pods}, memory: &bindMemory{}, binds: newBindQueue(pods),
		sources: &sourceWatcher{subscriptions: map[int][]subscription{}},
	}
	described := subpath.Bind{Verdict: subpath.Stale}
	described.Container = "app"
	for i, b := range []bind{
		{inspected: true, watched: true},
		{inspected: true, watched: true, code: fault.StaleSubPath, fault: &Fault{Finding: fault.Finding{Container: "app"}}, described: described},
		{inspected: true},
		{inspected: true, watched: true, found: subpath.Bind{SourceMissing: true}},
		{watched: true},
	} {
		b.point, b.sub = fmt.Sprint("/", i), kubelet.SubPath{PodUID: "uid", Container: "app"}
		w.binds.byPoint[b.point] = &b
		w.sources.subscriptions[i] = []subscription{{bind: &b}}
		w.binds.enqueue(&b)
	}
	tick := func() (due string) {
		w.binds.queue = share.Turns[*bind]{}
		for _, b := range w.binds.byPoint {
			b.queued = false
		}
		w.queuePending(time.Now())
		for _, point := range slices.Sorted(maps.Keys(w.binds.byPoint)) {
			if w.binds.byPoint[point].queued {
				due += point
			}
		}
		return due
	}
	const pollEach = "/1/2/3/4"
	for range 3 {
		if got := tick(); got != pollEach || len(w.binds.pending) != 4 {
			t.Errorf("queued at a tick: %s, pending: %d; want %s", got, len(w.binds.pending), pollEach)
		}
	}
	w.reportStatus()
	if got := w.sentinel.Status(); got.Binds != 5 || got.Unwatched != 1 || got.Present[fault.StaleSubPath] != 1 {
		t.Errorf("status: %+v", got)
	}
	w.sentinel.Mode, w.sentinel.Guard = Observe, always{Observe}
	if present, unknown := w.sentinel.Faults(); len(present) != 1 || present[0].Details.Container != fault.ContainerDown || unknown != nil ||
		!slices.Contains(present[0].Evidence, `container "app" has no status yet`) {
		t.Errorf("present: %+v, unknown: %v", present, unknown)
	}
	for range maxBindEvents + 1 {
		if err := w.handleEvents([]sys.Event{{Watch: 0}}, true); err != nil {
			t.Fatal(err)
		}
	}
	if got := tick(); got != "/0"+pollEach {
		t.Errorf("queued at the tick after too many events: %s, want all", got)
	}
	if got := tick(); got != pollEach {
		t.Errorf("queued at the tick after that: %s, want %s", got, pollEach)
	}
	w.removeBind("/2")
	if got := tick(); got != "/1/3/4" {
		t.Errorf("queued after one was removed: %s", got)
	}
}

// TestDeletedMarkIsNoNewFault: without unique ids, the mount is known by its number, and its root gets a mark later.
func TestDeletedMarkIsNoNewFault(t *testing.T) {
	t.Parallel()
	known := mount.ID{MountInfoID: 7, Parent: 1, Root: "/v/..1/key", Point: "/p"}
	b := &bind{point: known.Point}
	w := &bindMemory{notified: map[fault.Key]mount.ID{b.location(): known}}
	deleted, another, elsewhere := known, known, known
	deleted.Root += "//deleted"
	another.MountInfoID = 8
	elsewhere.Point = "/q"
	for id, want := range map[mount.ID]bool{known: true, deleted: true, another: false, elsewhere: false} {
		if w.isNotified(&bind{point: id.Point}, id) != want {
			t.Errorf("%+v is known: %v, want %v", id, !want, want)
		}
	}
}
