// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/sentinel"
)

// podOf is a pod of a namespace that has so many faults, one for each of its subPaths.
func (n *testNode) podOf(namespace, name string, faults int) (all []*sentinel.Fault) {
	p := n.pod(name)
	n.mu.Lock()
	p.Namespace = namespace
	n.mu.Unlock()
	for i := range faults {
		all = append(all, changed(stale(p, "app"), func(f *sentinel.Fault) { f.Volume = fmt.Sprint("v", i) }))
	}
	return all
}

// listedIn counts the objects in a namespace.
func (n *testNode) listedIn(t *testing.T, namespace string) (count int) {
	t.Helper()
	for name := range n.objects(t) {
		if strings.HasPrefix(name, namespace+"/") {
			count++
		}
	}
	return count
}

// TestOneTenantLeavesRoomInTheList: a pod has faults for the whole list, older and worse than those of others, which come later.
func TestOneTenantLeavesRoomInTheList(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		tenant := n.podOf("tenant", "many", 500)
		for i := range tenant {
			tenant[i] = down(tenant[i])
		}
		n.set(tenant...)
		time.Sleep(time.Minute)
		if listed := n.listedIn(t, "tenant"); listed != maxListed {
			t.Errorf("a tenant alone has %d objects", listed)
		}
		late := append(n.podOf("shop", "web", 1), n.podOf("bank", "one", 80)...)
		late = append(late, n.podOf("bank", "two", 1)...)
		n.set(append(tenant, late...)...)
		time.Sleep(time.Minute)
		shop, bank, listed := n.listedIn(t, "shop"), n.listedIn(t, "bank"), n.listedIn(t, "tenant")
		if shop != 1 || bank != 81 || listed != maxListed-82 {
			t.Errorf("shop has %d objects, bank %d, the tenant %d", shop, bank, listed)
		}
		if rest := n.objects(t)["kubediag/n1-unlisted"].Status.Unlisted; rest != 500-(maxListed-82) {
			t.Errorf("%d are counted", rest)
		}
	})
}

// TestOnePodLeavesRoomToItsNamespace: pods of a namespace take turns, too.
func TestOnePodLeavesRoomToItsNamespace(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		n.set(append(n.podOf("shop", "many", 500), n.podOf("shop", "web", 1)...)...)
		time.Sleep(time.Minute)
		found := false
		for _, f := range n.objects(t) {
			found = found || f.Status.Pod != nil && f.Status.Pod.Name == "web"
		}
		if !found {
			t.Error("the fault of the second pod has no object")
		}
	})
}

// TestWhatIsNotKnownYetLeavesRoom: after a restart, objects whose faults are not known yet do not keep others out. Those that give up
// their place are not said to be gone.
func TestWhatIsNotKnownYetLeavesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		stop := n.start(t)
		n.set(n.podOf("tenant", "many", 500)...)
		time.Sleep(time.Minute)
		stop()
		n.Writer, n.present = n.writer(), nil
		n.looking(fault.StaleSubPath)
		n.said()
		defer n.start(t)()
		p := n.pod("web")
		n.set(dead(p, ""))
		time.Sleep(time.Minute)
		if shop, listed := n.listedIn(t, "shop"), n.listedIn(t, "tenant"); shop != 1 || listed != maxListed-1 {
			t.Errorf("shop has %d objects, the tenant %d", shop, listed)
		}
		for _, e := range n.said() {
			if strings.Contains(e, reasonFaultGone) {
				t.Errorf("%q", e)
			}
		}
	})
}

// TestOneTenantDelaysNoWrite: the API server is slow, and the objects of a tenant change all the time. A fault of another namespace is written
// within a few writes, and those of the tenant all the same.
func TestOneTenantDelaysNoWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.slow = time.Second
		defer n.start(t)()
		tenant, web := n.podOf("tenant", "many", 150), n.podOf("shop", "web", 1)
		worse := slices.Clone(tenant)
		for i := range worse {
			worse[i] = down(worse[i])
		}
		for i := range 600 {
			present := [][]*sentinel.Fault{tenant, worse}[i%2]
			if i >= 60 {
				present = append(slices.Clone(present), web...)
			}
			n.set(present...)
			time.Sleep(500 * time.Millisecond)
			if i == 60+10 && n.listedIn(t, "shop") == 0 {
				t.Error("after five seconds and as many writes, the fault has no object")
			}
		}
		if listed := n.listedIn(t, "tenant"); listed != 150 {
			t.Errorf("the tenant has %d objects", listed)
		}
	})
}

// TestNamespacesAreWrittenSideBySide: the API server is slow. The first faults of six namespaces have their objects in the time of one write.
func TestNamespacesAreWrittenSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.slow = time.Second
		var all []*sentinel.Fault
		for i := range 6 {
			all = append(all, n.podOf(fmt.Sprint("team-", i), fmt.Sprint("pod-", i), 3)...)
		}
		n.set(all...)
		defer n.start(t)()
		time.Sleep(1500 * time.Millisecond)
		for i := range 6 {
			if listed := n.listedIn(t, fmt.Sprint("team-", i)); listed != 1 {
				t.Errorf("team-%d has %d objects, want 1", i, listed)
			}
		}
	})
}

// TestOnePodDelaysNoWriteOfItsNamespace: a pod with a hundred faults, the worst ones, leaves the second round of writes to another pod.
func TestOnePodDelaysNoWriteOfItsNamespace(t *testing.T) {
	t.Parallel()
	entries := entrySet{}
	add := func(name string, pod types.UID, impact v1.FaultImpact) {
		entries[types.NamespacedName{Namespace: "team", Name: name}] = &entry{want: &v1.MountFault{Status: v1.MountFaultStatus{
			Impact: impact, Pod: &v1.FaultPod{UID: pod},
		}}}
	}
	for i := range 100 {
		add(fmt.Sprintf("a-%03d", i), "many", v1.ImpactNow)
	}
	add("z", "one", v1.ImpactNextStart)
	rounds := entries.rounds()
	if len(rounds) != 101 || len(rounds[1]) != 1 || rounds[1][0].Name != "z" {
		t.Errorf("%d rounds, %v", len(rounds), rounds[:2])
	}
}
