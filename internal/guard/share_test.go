// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
)

// podIn is a pod of a namespace without a controller.
func podIn(namespace string, i int) *corev1.Pod {
	p := podOf(i)
	p.Namespace, p.UID, p.OwnerReferences = namespace, types.UID(fmt.Sprint(namespace, "-", i)), nil
	return p
}

// fullNode is a node with a guard and what a tenant has broken there.
type fullNode struct {
	*Guard
	pods   []*corev1.Pod // of the tenant, with as many faults together as faults
	faults int
	victim *corev1.Pod
	healed time.Time
}

// tick asks about all faults of the node once, in random order.
func (n *fullNode) tick(t *testing.T, began time.Time) {
	n.Freshness.Answered()
	for _, i := range rand.Perm(n.faults + 1) {
		pod := n.victim
		if i < n.faults {
			pod = n.pods[i%len(n.pods)]
		} else if time.Since(began) < time.Minute || !n.healed.IsZero() {
			continue
		}
		f := faultOf(pod)
		f.Mount.Point = fmt.Sprint("/p/", i)
		if !n.Acquire(t.Context(), f, pod) {
			continue
		}
		n.Ended(f.Key(), f.Pod, nil) // and the tenant breaks it again
		if pod == n.victim {
			n.healed = time.Now()
		}
	}
}

// TestADayWithATenant: on each of ten nodes a tenant has a hundred faults that come back as soon as they are repaired. A minute later, a
// pod of another namespace has one. It is repaired at once, or nearly.
func TestADayWithATenant(t *testing.T) {
	t.Parallel()
	bare := func(pods int) func(i int) []*corev1.Pod {
		return func(i int) (all []*corev1.Pod) {
			for n := range pods {
				all = append(all, podIn("tenant", 100*i+n))
			}
			return all
		}
	}
	owned := func(i int) []*corev1.Pod { // each says that it has a controller of its own
		all := bare(50)(i)
		for _, p := range all {
			p.OwnerReferences = podOf(0).OwnerReferences
			p.OwnerReferences[0].Name = p.Name
		}
		return all
	}
	for name, tc := range map[string]struct {
		pods     func(i int) []*corev1.Pod
		workload *v1.RepairBudget
		most     time.Duration // until all are healed
		atOnce   int           // are healed within a minute
	}{
		"a pod without a controller":       {bare(1), &v1.RepairBudget{AtOnce: 1, PerHour: 1}, time.Minute, 10},
		"many pods without a controller":   {bare(50), &v1.RepairBudget{AtOnce: 1, PerHour: 1}, 6 * time.Minute, 4},
		"as many workloads as pods":        {owned, &v1.RepairBudget{AtOnce: 1, PerHour: 1}, 6 * time.Minute, 4},
		"no budget of workloads":           {bare(1), nil, 6 * time.Minute, 4},
		"many pods, no budget of workload": {bare(50), nil, 6 * time.Minute, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				var nodes []*fullNode
				for i := range 10 {
					n := &fullNode{Guard: beginOn(t, s, fmt.Sprint("node-", i)), pods: tc.pods(i), faults: 100, victim: podIn("shop", i)}
					n.Set(budgeted(v1.RecoveryBudgets{
						Node: &v1.RepairBudget{AtOnce: 20, PerHour: 60}, Cluster: &v1.RepairBudget{AtOnce: 100, PerHour: 1000}, Workload: tc.workload,
					}))
					nodes = append(nodes, n)
				}
				began := time.Now()
				// Chance decides which nodes have the slots of a period. One node in a hundred has none in two periods.
				const period = 6 * time.Minute
				for time.Since(began) < time.Minute+tc.most+period {
					for _, n := range nodes {
						n.tick(t, began)
					}
					time.Sleep(2 * time.Second)
				}
				atOnce, late := 0, 0
				for i, n := range nodes {
					after := n.healed.Sub(began) - time.Minute
					if n.healed.IsZero() {
						t.Errorf("node %d: never healed", i)
					}
					if after > tc.most {
						late++
					}
					if !n.healed.IsZero() && after <= time.Minute {
						atOnce++
					}
				}
				if atOnce < tc.atOnce || late > 1 {
					t.Errorf("%d of 10 were healed at once, and %d after more than %s", atOnce, late, tc.most)
				}
			})
		})
	}
}

// repairs counts how many repairs of pods of a namespace are allowed now, each of another mount.
func (n *fullNode) repairs(t *testing.T, namespace string, tries int) (count int) {
	for i := range tries {
		pod := podIn(namespace, i)
		f := fault.Finding{Code: fault.StaleSubPath, Pod: fault.Pod{UID: string(pod.UID)}, Container: "app", Volume: "v"}
		if n.Acquire(t.Context(), f, pod) {
			count++
		}
	}
	return count
}

// TestNamespaceBudget: it holds while another namespace waits that has something left of its own, and only then.
func TestNamespaceBudget(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		namespace *v1.RepairBudget
		alone     int // repairs of one namespace without a pause
		shared    int // of one in an hour, while another asks for as many
	}{
		"a quarter by default": {nil, 35, 15},
		"as the policy has it": {&v1.RepairBudget{AtOnce: 2, PerHour: 20}, 35, 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := &fullNode{Guard: begin(t, &server{})}
				n.Set(budgeted(v1.RecoveryBudgets{Node: &v1.RepairBudget{AtOnce: 40, PerHour: 60}, Namespace: tc.namespace}))
				if alone := n.repairs(t, "tenant", 100); alone != tc.alone {
					t.Errorf("%d repairs of one namespace", alone)
				}
				if first := n.repairs(t, "shop", 1); first != 1 {
					t.Error("nothing is left for another namespace")
				}
				n.repairs(t, "shop", 100)
				got := map[string]int{}
				for range 3600 / 5 {
					time.Sleep(5 * time.Second)
					n.Freshness.Answered()
					for _, namespace := range []string{"tenant", "shop"} {
						got[namespace] += n.repairs(t, namespace, 3)
					}
				}
				if got["shop"] < tc.shared || got["tenant"]+got["shop"] > 65 {
					t.Errorf("in an hour: %v", got)
				}
				time.Sleep(time.Hour)
				n.Freshness.Answered()
				if alone := n.repairs(t, "tenant", 100); alone != tc.alone {
					t.Errorf("%d repairs when no other waits any more", alone)
				}
			})
		})
	}
}

// TestAPodWithoutAControllerIsAWorkload, and no other pod pays for it.
func TestAPodWithoutAControllerIsAWorkload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		g.Set(budgeted(v1.RecoveryBudgets{Workload: &v1.RepairBudget{AtOnce: 2, PerHour: 2}}))
		for i := range 2 {
			pod, count := podIn("shop", i), 0
			for range 10 {
				if g.Acquire(t.Context(), faultOf(pod), pod) {
					count++
				}
			}
			if count != 2 {
				t.Errorf("%d repairs of pod %d", count, i)
			}
		}
		pod := podIn("shop", 0)
		want := "the budget of policy p for pod pod-0 is used up"
		if r := g.Recovery([]fault.Finding{faultOf(pod)}, pod); r.Message != want {
			t.Errorf("%q, want %q", r.Message, want)
		}
	})
}

// TestANodeHasItsShareOfAPeriod: a node takes a quarter of the slots of a period.
func TestANodeHasItsShareOfAPeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		n := &fullNode{Guard: begin(t, s)}
		n.Set(budgeted(v1.RecoveryBudgets{Cluster: &v1.RepairBudget{AtOnce: 100, PerHour: 100}}))
		period := time.Now().Truncate(time.Hour).Add(time.Hour)
		total, namespaces := 0, []string{"a", "b", "c", "d", "e"}
		for time.Now().Before(period) {
			n.Freshness.Answered()
			for _, namespace := range namespaces {
				total += n.repairs(t, namespace, 30)
			}
			time.Sleep(time.Minute)
		}
		if s.count() != 5 || total != 25 {
			t.Errorf("%d slots of 20, %d repairs of 100", s.count(), total)
		}
	})
}

// TestSlotsOfANode: each node may have a quarter of the slots of a divided budget, at any size of it. No other node may have more than half of
// these slots.
func TestSlotsOfANode(t *testing.T) {
	t.Parallel()
	for slots := 8; slots <= 200; slots++ {
		s, alone := &slotBudget{slots: slots, divided: true}, 0
		for a := range 16 {
			mine, others := 0, map[int]int{}
			for i := range slots {
				if !s.mayHave(fmt.Sprint("node-", string(nodeLetters[a])), i) {
					continue
				}
				mine++
				for b := range 16 {
					if b != a && s.mayHave(fmt.Sprint("node-", string(nodeLetters[b])), i) {
						others[b]++
					}
				}
			}
			if mine < slots/4 || mine > (slots+3)/4 {
				t.Fatalf("node %d may have %d of %d slots", a, mine, slots)
			}
			for b, both := range others {
				if both > (mine+1)/2 {
					t.Fatalf("nodes %d and %d have %d of %d slots in common", a, b, both, mine)
				}
			}
			if len(others) < 15 {
				alone++
			}
		}
		if alone == 0 {
			t.Fatalf("%d slots: each node has slots in common with all others", slots)
		}
	}
	if whole := (&slotBudget{slots: 4}); !whole.mayHave("a", 3) || !whole.mayHave("b", 3) {
		t.Error("a budget that is not divided has slots that a node may not have")
	}
}

// TestSlotsAreKeptForOtherNamespaces: one namespace leaves a quarter of the slots of the cluster until the last quarter of a period, on
// all nodes the same.
func TestSlotsAreKeptForOtherNamespaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		var nodes []*fullNode
		for i := range 20 {
			n := &fullNode{Guard: beginOn(t, s, fmt.Sprint("node-", i))}
			n.Set(budgeted(v1.RecoveryBudgets{Cluster: &v1.RepairBudget{AtOnce: 64, PerHour: 64}}))
			nodes = append(nodes, n)
		}
		all := func(until time.Duration) {
			for began := time.Now().Truncate(time.Hour); time.Since(began) < until; time.Sleep(20 * time.Second) {
				for _, n := range nodes {
					n.Freshness.Answered()
					n.repairs(t, "tenant", 10)
				}
			}
		}
		all(44 * time.Minute)
		if s.count() != 12 {
			t.Errorf("%d slots of 16", s.count())
		}
		healed := 0
		for i := range 20 { // 20 namespaces leave other slots than the tenant
			if nodes[19].repairs(t, fmt.Sprint("shop-", i), 1) > 0 {
				healed++
			}
		}
		if healed == 0 {
			t.Error("nothing is left for other namespaces")
		}
		all(59 * time.Minute)
		if s.count() != 16 {
			t.Errorf("%d slots of 16 at the end", s.count())
		}
	})
}
