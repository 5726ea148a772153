// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/sys"
)

// podsNamed are pods whose UID is their namespace and their name.
type podsNamed []string

func (p podsNamed) PodByUID(uid string) *corev1.Pod {
	if !slices.Contains(p, uid) {
		return nil
	}
	var namespace, name string
	_, _ = fmt.Sscanf(uid, "%s %s", &namespace, &name)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// TestBindsTakeTurns: a tenant has hundreds of binds in the queue. The bind of another namespace comes last, and is in the next visit,
// and so is a bind of a second pod of the tenant.
func TestBindsTakeTurns(t *testing.T) {
	t.Parallel()
	q := newBindQueue(podsNamed{"tenant many", "tenant one", "shop web"})
	add := func(uid string, i int) *bind {
		b := &bind{point: fmt.Sprint(uid, i), sub: kubelet.SubPath{PodUID: uid}}
		q.byPoint[b.point] = b
		q.enqueue(b)
		return b
	}
	for i := range 10 * maxBatch {
		add("tenant many", i)
	}
	one, web, unknown := add("tenant one", 0), add("shop web", 0), add("gone", 0)
	q.enqueue(web) // waits already
	dropped := add("shop web", 1)
	q.drop(dropped)
	batch := q.nextBatch()
	for name, b := range map[string]*bind{"a second pod": one, "another namespace": web, "a pod that is not known": unknown} {
		if i := slices.Index(batch, b); i < 0 || i > 4 {
			t.Errorf("the bind of %s is number %d of %d", name, i, len(batch))
		}
	}
	if len(batch) != maxBatch || slices.Contains(batch, dropped) || web.queued || q.queue.Len() != 10*maxBatch+3-maxBatch {
		t.Errorf("%d binds, %d are left", len(batch), q.queue.Len())
	}
}

// TestEventsAreTakenInBetweenVisits: while binds of a tenant wait, an event of another bind does not wait until all are inspected, and
// neither does a tick.
func TestEventsAreTakenInBetweenVisits(t *testing.T) {
	t.Parallel()
	pods := podsNamed{"tenant many"}
	w := &bindWatcher{
		sentinel: &Sentinel{Guard: always{}, Pods: pods}, memory: &bindMemory{}, binds: newBindQueue(pods),
		sources: &sourceWatcher{subscriptions: map[int][]subscription{}},
	}
	decisions := make(chan struct{}, 1)
	w.memory.decisions = decisions
	refused := &bind{
		point: "/refused", inspected: true, watched: true, code: "StaleSubPath", refusedUntil: time.Now().Add(time.Hour),
		found: subpath.Bind{Verdict: subpath.Stale},
	}
	w.binds.byPoint[refused.point], w.binds.pending[refused] = refused, true
	b := &bind{point: "/b", sub: kubelet.SubPath{PodUID: "tenant many"}}
	w.binds.byPoint[b.point] = b
	w.binds.enqueue(b)
	decisions <- struct{}{}
	for range 1000 { // by chance, the queue comes first
		if got, err := w.takeIn(t.Context(), nil); err != nil {
			t.Fatal(err)
		} else if got {
			break
		}
	}
	if len(decisions) > 0 || !refused.refusedUntil.IsZero() {
		t.Error("a decision of the guard waits until the queue is empty")
	}
	if got, err := w.takeIn(t.Context(), nil); got || err != nil || w.binds.queue.Len() != 1 {
		t.Errorf("the queue waits for the next event: %t, %v", got, err)
	}
}

// TestEventsComeBeforeVisits: all readings of events that wait are handled before the binds of a tenant are visited, and a flood of events keeps no
// bind from its visit.
func TestEventsComeBeforeVisits(t *testing.T) {
	t.Parallel()
	pods := podsNamed{"tenant many", "shop web"}
	sources := &sourceWatcher{events: make(chan []sys.Event, 100), subscriptions: map[int][]subscription{}}
	w := &bindWatcher{sentinel: &Sentinel{Guard: always{}, Pods: pods}, memory: &bindMemory{}, binds: newBindQueue(pods), sources: sources}
	w.binds.enqueue(&bind{point: "/many", sub: kubelet.SubPath{PodUID: "tenant many"}})
	var changed []*bind
	for i := range 5 {
		b := &bind{point: fmt.Sprint("/web/", i), sub: kubelet.SubPath{PodUID: "shop web"}}
		changed, sources.subscriptions[i] = append(changed, b), []subscription{{bind: b}}
		sources.events <- []sys.Event{{Watch: i}}
	}
	if got, err := w.takeIn(t.Context(), nil); !got || err != nil {
		t.Fatalf("nothing is handled: %v", err)
	}
	if i := slices.IndexFunc(changed, func(b *bind) bool { return !b.queued }); i >= 0 {
		t.Errorf("event %d waits for a visit", i)
	}
	for range cap(sources.events) {
		sources.events <- nil
	}
	if _, err := w.takeIn(t.Context(), nil); err != nil || len(sources.events) != cap(sources.events)-maxEventReads {
		t.Errorf("%d readings are left: %v", len(sources.events), err)
	}
}
