// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/sentinel"
)

// TestNodeBudgetKeepsItsPace: five at once, and then one in a minute.
func TestNodeBudgetKeepsItsPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		policy := budgeted(v1.RecoveryBudgets{Node: &v1.RepairBudget{AtOnce: 5, PerHour: 60}})
		g.Set(policy)
		if n := acquired(t, g, 20); n != 5 {
			t.Errorf("%d at once", n)
		}
		p := podOf(19)
		if r := g.Recovery([]fault.Finding{faultOf(p)}, p); r.Mode != v1.RecoveryAutomatic || r.Message != "the budget of policy p for the node is used up" {
			t.Errorf("%+v", r)
		}
		g.Set(policy.DeepCopy()) // a status was written: the budget stays
		total := 0
		for range 60 {
			time.Sleep(time.Minute)
			g.Freshness.Answered()
			total += acquired(t, g, 20)
		}
		if total < 59 || total > 60 {
			t.Errorf("%d in an hour", total)
		}
	})
}

// TestClusterBudgetHolds: many nodes with many faults share one budget, and no node knows of another. In a period no more is
// repaired than the budget allows. Without a fault nothing is written.
func TestClusterBudgetHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		var nodes []*Guard
		for range 50 {
			g := begin(t, s)
			g.Set(budgeted(v1.RecoveryBudgets{Cluster: &v1.RepairBudget{AtOnce: 10, PerHour: 10}}))
			nodes = append(nodes, g)
		}
		if s.count() != 0 {
			t.Errorf("%d slots without a fault", s.count())
		}
		total := 0
		start := time.Now().Truncate(time.Hour)
		for time.Now().Before(start.Add(time.Hour - time.Minute)) {
			for _, g := range nodes {
				g.Freshness.Answered()
				total += acquired(t, g, 5)
			}
			time.Sleep(30 * time.Second)
		}
		if total < 9 || total > 10 || s.count() != 3 {
			t.Errorf("%d repairs in a period, %d slots", total, s.count())
		}
	})
}

func TestWorkloadBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		g.Set(budgeted(v1.RecoveryBudgets{Workload: &v1.RepairBudget{AtOnce: 2, PerHour: 2}}))
		if n := acquired(t, g, 10); n != 2 {
			t.Errorf("%d repairs of one workload", n)
		}
		p := podOf(30)
		p.OwnerReferences[0].Name = "other"
		if !g.Acquire(t.Context(), faultOf(p), p) {
			t.Error("another workload has to wait")
		}
		if p.OwnerReferences = nil; !g.Acquire(t.Context(), faultOf(p), p) {
			t.Error("a pod of no workload has to wait")
		}
	})
}

// TestVolumeAndItsCopiesAreOneRepair of the budgets, and each copy is part of it once.
func TestVolumeAndItsCopiesAreOneRepair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		g.Set(budgeted(v1.RecoveryBudgets{Workload: &v1.RepairBudget{AtOnce: 1, PerHour: 1}}))
		p := podOf(0)
		find := func(place fault.Place, volume, container, point string) fault.Finding {
			return fault.Finding{
				Code: fault.DisconnectedFUSE, Pod: fault.Pod{UID: string(p.UID)}, Volume: volume, Container: container,
				Mount: fault.Mount{Point: point}, Details: fault.Details{Place: place},
			}
		}
		repaired := func(f fault.Finding) bool {
			allowed := g.Acquire(t.Context(), f, p)
			if allowed {
				time.Sleep(time.Second)
				g.Ended(f.Key(), f.Pod, nil)
			}
			return allowed
		}
		app, side := find(fault.PlaceContainer, "v", "app", "/data"), find(fault.PlaceContainer, "v", "side", "/data")
		if !repaired(find(fault.PlaceVolume, "v", "", "/kubelet/v")) || !repaired(app) || !repaired(side) {
			t.Error("a container keeps its dead mount")
		}
		for name, f := range map[string]fault.Finding{
			"the same mount": app, "a mount of another volume": find(fault.PlaceContainer, "w", "app", "/w"),
			"a bind of the volume": find(fault.PlaceSubPath, "v", "app", "/kubelet/0"), "the volume": find(fault.PlaceVolume, "v", "", "/kubelet/v"),
		} {
			if repaired(f) {
				t.Errorf("%s is repaired beyond the budget", name)
			}
		}
		time.Sleep(partTime)
		if repaired(find(fault.PlaceContainer, "v", "late", "/data")) {
			t.Error("a mount that died later is repaired beyond the budget")
		}
	})
}

func TestCooldown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		g.Set(automatic(func(s *v1.RecoveryPolicySpec) { s.CooldownSeconds = number(120) }))
		if acquired(t, g, 1) != 1 || acquired(t, g, 1) != 0 {
			t.Error("no cooldown")
		}
		time.Sleep(2 * time.Minute)
		if acquired(t, g, 1) != 1 {
			t.Error("it does not end")
		}
	})
}

// TestFailuresInARow: the node stops by itself, a success begins a new row, and so does a breaker that was closed.
func TestFailuresInARow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		policy := automatic(func(s *v1.RecoveryPolicySpec) { s.Breaker = &v1.RecoveryBreaker{FailedRepairs: number(3)} })
		g.Set(policy)
		p := podOf(0)
		f := faultOf(p)
		fail := func(n int) {
			if g.fail(t, p, n) != n {
				t.Fatalf("%+v", g.Recovery([]fault.Finding{f}, p))
			}
		}
		fail(2)
		g.Ended(f.Key(), f.Pod, nil)
		fail(3)
		r := g.Recovery([]fault.Finding{f, f}, p)
		if r.Mode != v1.RecoveryObserve || r.FailedRepairs != 3 || r.LastFailureTime == nil || g.Mode(f.Code, p) != sentinel.Observe {
			t.Errorf("%+v", r)
		}
		if other := g.Recovery([]fault.Finding{{Code: fault.HungMount}}, p); other.Mode != v1.RecoveryAutomatic {
			t.Errorf("another fault: %+v", other)
		}
		opened := policy.DeepCopy()
		opened.Status.Breakers = []v1.BreakerStatus{{Code: string(f.Code), State: v1.BreakerOpen, Message: "3 repairs in a row have failed"}}
		g.Set(opened)
		if r := g.Recovery([]fault.Finding{f}, p); r.Message != "the breaker of policy p for StaleSubPath is open: 3 repairs in a row have failed" {
			t.Errorf("%+v", r)
		}
		closed := opened.DeepCopy()
		closed.Status.Breakers[0].State, closed.Status.Breakers[0].ClosedTime = v1.BreakerClosed, &metav1.Time{Time: time.Now()}
		g.Set(closed)
		if r := g.Recovery([]fault.Finding{f}, p); r.FailedRepairs != 0 || r.Mode != v1.RecoveryAutomatic {
			t.Errorf("%+v", r)
		}
		fail(2)
	})
}
