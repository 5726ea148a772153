// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"fmt"
	"slices"
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

func TestRepairQueue(t *testing.T) {
	t.Parallel()
	actionOf := func(pod string) fault.Action { return fault.Action{Pod: &fault.Pod{UID: pod}} }
	actions := append(slices.Repeat([]fault.Action{actionOf("b")}, 40), actionOf("a"), actionOf("c"))
	var queue repairQueue
	queue.plan(actions)
	got := ""
	for round := 0; !queue.empty(); round++ {
		batch := queue.next()
		got += fmt.Sprintf("%s%d ", batch[0].Pod.UID, len(batch))
		if round == 1 {
			queue.putBack(batch[10:]) // no time was left for these
		}
		if round == 3 {
			queue.plan(actions[:40]) // a new plan does not change the turn
		}
	}
	if want := "a1 b16 c1 b16 b16 b16 b8 "; got != want {
		t.Errorf("batches %s, want %s", got, want)
	}
	queue.plan(actions)
	queue.lastPod = "a"
	queue.next()
	queue.dropPod()
	if next := queue.next(); next[0].Pod.UID != "c" || len(queue.actions) != 1 {
		t.Errorf("after a failure of b, %q has its turn, and %d pods wait", next[0].Pod.UID, len(queue.actions))
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
	w.Guard = g
	if err := w.scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tried := d.totalRepairs(); tried != 1 || g.acquired != tried || g.ended != tried {
		t.Errorf("%d repairs were tried, %d acquired, %d ended", tried, g.acquired, g.ended)
	}
}
