// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
)

// A pod makes a new broken mount for each that is repaired, a thousand at any time, and is first in every order. The other
// pod's single volume is repaired within a second of work all the same, also where repairs of the first pod fail.
func TestOnePodHoldsUpNoOther(t *testing.T) {
	for name, fails := range map[string]bool{"repairs succeed": false, "repairs fail": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const many, each = 1000, 60 * time.Millisecond
				w := newWreck(many + 1)
				last := w.volumes[many]
				for _, v := range w.volumes {
					v.Pod.UID = "a"
				}
				last.Pod.UID = "b"
				next := many + 1
				var order []string
				w.mend = func(a fault.Action) error {
					time.Sleep(each)
					order = append(order, a.Pod.UID)
					if a.Pod.UID == "a" && fails {
						return volume.ErrHung
					}
					w.gone(a, w.volumes)
					if a.Pod.UID == "a" {
						v := *newWreck(1).volumes[0]
						v.Pod.UID, v.Mount.Unique, v.Mount.ID, v.Mount.Point = "a", uint64(next+1), next+1, fmt.Sprint("/", next)
						next++
						w.volumes = append(w.volumes, &v)
					}
					return nil
				}
				p := w.patrol()
				p.repairs.lastPod = "b" // it is the first pod's turn
				for began := time.Now(); time.Since(began) < 20*time.Second; {
					if err := p.scan(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if w.applied[last.Mount.Point] != 1 {
					t.Fatalf("the other pod's volume was repaired %d times beside %d repairs", w.applied[last.Mount.Point], len(order))
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
	of := func(pod string) fault.Action { return fault.Action{Pod: &fault.Pod{UID: pod}} }
	actions := append(slices.Repeat([]fault.Action{of("b")}, 40), of("a"), of("c"))
	var tr repairQueue
	tr.plan(actions)
	got := ""
	for round := 0; !tr.empty(); round++ {
		batch := tr.next()
		got += fmt.Sprintf("%s%d ", batch[0].Pod.UID, len(batch))
		if round == 1 {
			tr.putBack(batch[10:]) // no time was left for these
		}
		if round == 3 {
			tr.plan(actions[:40]) // all was looked at: the turn goes on
		}
	}
	if want := "a1 b16 c1 b16 b16 b16 b8 "; got != want {
		t.Errorf("batches %s, want %s", got, want)
	}
	tr.plan(actions)
	tr.lastPod = "a"
	tr.next()
	tr.dropPod()
	if next := tr.next(); next[0].Pod.UID != "c" || len(tr.actions) != 1 {
		t.Errorf("after a failure of b, %q has its turn, and %d pods wait", next[0].Pod.UID, len(tr.actions))
	}
}
