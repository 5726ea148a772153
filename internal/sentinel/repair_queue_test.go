// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
)

// TestPodsShareRepairTime: one pod has a thousand broken mounts, gets a new one after each repair, and is always first
// in order. The single volume of the other pod is repaired within a second of work, even if repairs of the first pod
// fail.
func TestPodsShareRepairTime(t *testing.T) {
	for name, fails := range map[string]bool{"repairs succeed": false, "repairs fail": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const many, each = 1000, 60 * time.Millisecond
				d := newDeadVolumes(many + 1)
				last := d.volumes[many]
				for _, v := range d.volumes {
					v.Evidence.Pod.UID = "a"
				}
				last.Evidence.Pod.UID = "b"
				next := many + 1
				var order []string
				d.repair = func(a fault.Action) error {
					time.Sleep(each)
					order = append(order, a.Pod.UID)
					if a.Pod.UID == "a" && fails {
						return volume.ErrHung
					}
					d.remove(a, d.volumes)
					if a.Pod.UID == "a" {
						v := *newDeadVolumes(1).volumes[0]
						v.Evidence.Pod.UID, v.Evidence.Mount.Unique, v.Evidence.Mount.ID, v.Evidence.Mount.Point = "a", uint64(next+1), next+1, fmt.Sprint("/", next)
						next++
						d.volumes = append(d.volumes, &v)
					}
					return nil
				}
				watcher := d.watcher()
				watcher.repairs.lastPod = "b" // the first pod has the next turn
				for began := time.Now(); time.Since(began) < 20*time.Second; {
					if err := watcher.scan(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if d.applied[last.Evidence.Mount.Point] != 1 {
					t.Fatalf("the other pod's volume was repaired %d times in %d repairs", d.applied[last.Evidence.Mount.Point], len(order))
				}
				for i, uid := range order {
					if uid == "b" && i > maxRepairs || i > maxRepairs && uid != "a" {
						t.Errorf("the other pod's volume had its turn after %d repairs", i)
					}
				}
				if order[0] != "a" || len(order) < 10 {
					t.Errorf("%d repairs, the first of pod %q", len(order), order[0])
				}
			})
		})
	}
}

// TestNamespacesShareRepairTime: a tenant has many pods, and all of them have broken mounts again after each repair. The one of another namespace,
// which comes last in the order of the pods, is repaired in the first batch.
func TestNamespacesShareRepairTime(t *testing.T) {
	t.Parallel()
	const many = 10 * maxRepairs
	var actions []fault.Action
	for i := range many {
		actions = append(actions, fault.Action{Pod: &fault.Pod{Namespace: "tenant", UID: fmt.Sprintf("a-%03d", i)}})
	}
	var q repairQueue
	q.plan(append(actions, fault.Action{Pod: &fault.Pod{Namespace: "shop", UID: "b"}}))
	had, others := map[string]int{}, 0
	for _, a := range q.next() {
		had[a.Pod.Namespace]++
	}
	if had["shop"] != 1 || had["tenant"] != maxRepairs-1 {
		t.Errorf("in the first batch: %v", had)
	}
	for !q.empty() { // each pod has its turn
		for _, a := range q.next() {
			others++
			had[a.Pod.UID]++
		}
	}
	if others != many-maxRepairs+1 || had["a-000"] != 0 || had[fmt.Sprintf("a-%03d", many-1)] != 1 {
		t.Errorf("%d repairs after the first batch", others)
	}
}

func TestRepairQueue(t *testing.T) {
	t.Parallel()
	plan := func(of string) (actions []fault.Action) {
		for i, uid := range of {
			actions = append(actions, fault.Action{Pod: &fault.Pod{UID: string(uid)}, Target: fmt.Sprint(string(uid), i)})
		}
		return actions
	}
	var queue repairQueue
	queue.plan(plan(strings.Repeat("b", 40) + "ac"))
	got, tried := "", map[string]bool{}
	for round := 0; !queue.empty(); round++ {
		batch := queue.next()
		for _, a := range batch {
			got += a.Pod.UID
			tried[a.Target] = true
		}
		got += " "
		if round == 1 {
			queue.putBack(batch[10:]) // no time was left for these
			if next := queue.actions["b"]; next[0].Target != batch[10].Target || next[6].Target == batch[15].Target {
				t.Errorf("after these were put back: %+v", next)
			}
		}
	}
	b := func(n int) string { return strings.Repeat("b", n) }
	if want := "abc" + b(13) + " " + b(16) + " " + b(16) + " "; got != want || len(tried) != 42 {
		t.Errorf("batches %s, %d in all, want %s and 42", got, len(tried), want)
	}
	queue.plan(plan("bbac"))
	queue.lastPod = "a" // a new plan does not change the turn
	if batch := queue.next(); len(batch) != 4 || batch[0].Pod.UID != "b" || batch[1].Pod.UID != "c" || batch[2].Pod.UID != "a" {
		t.Errorf("batch %+v, want b, c, a, b", batch)
	}
	queue.plan(plan("bbac"))
	queue.dropPod("b")
	if batch := queue.next(); len(batch) != 2 || !queue.empty() {
		t.Errorf("after a failure of b: %+v", batch)
	}
}

// TestPodsShareLooks: a daemon took the volumes of ten pods with it. They are repaired with one look before and one after, and the
// failure of one pod holds up that pod alone.
func TestPodsShareLooks(t *testing.T) {
	t.Parallel()
	const many = 10
	d := newDeadVolumes(2 * many)
	for i, v := range d.volumes {
		v.Evidence.Pod.UID = fmt.Sprint("pod-", i%many)
	}
	d.repair = func(a fault.Action) error {
		if a.Pod.UID == "pod-3" {
			if d.applied["/3"]+d.applied["/13"] > 1 && len(d.looks) == 1 {
				t.Error("a second repair of the pod was tried before a look")
			}
			return volume.ErrHung
		}
		d.remove(a, d.volumes)
		return nil
	}
	w := d.watcher()
	if err := w.scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(d.looks) < 2 || len(d.looks[0]) != many || len(d.looks[1]) != maxRepairs-2 {
		t.Errorf("looks %q, want one at %d pods, and one at %d repairs", d.looks, many, maxRepairs-2)
	}
	if len(d.volumes) != 2 {
		t.Errorf("%d volumes are left after the repairs %v, want those of the pod that fails", len(d.volumes), d.applied)
	}
}

// countingGuard allows everything and counts.
type countingGuard struct {
	always
	acquired, ended int
}

func (g *countingGuard) Acquire(context.Context, fault.Finding, *corev1.Pod) bool {
	g.acquired++
	return true
}

func (g *countingGuard) Ended(fault.Key, fault.Pod, error) { g.ended++ }

// TestUntriedRepairsSpendNoBudget: the first repair of a pod fails, and the other repairs of its batch are not tried.
func TestUntriedRepairsSpendNoBudget(t *testing.T) {
	t.Parallel()
	d := newDeadVolumes(maxRepairs)
	d.repair = func(fault.Action) error { return volume.ErrHung }
	w, g := d.watcher(), &countingGuard{always: always{Automatic}}
	w.sentinel.Guard = g
	if err := w.scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tried := d.totalRepairs(); tried != 1 || g.acquired != tried || g.ended != tried {
		t.Errorf("%d repairs were tried, %d acquired, %d ended", tried, g.acquired, g.ended)
	}
}
