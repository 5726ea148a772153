// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package recoverypolicy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/policy"
)

// faultIn is a fault of a pod in a namespace, with so many failed repairs.
func faultIn(namespace, node string, failed int32, last time.Time) *v1.MountFault {
	name := fmt.Sprintf("%s-%s", namespace, node)
	f := &v1.MountFault{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Status: v1.MountFaultStatus{
		Code: "StaleSubPath", Node: node, Pod: &v1.FaultPod{Namespace: namespace, Name: name, UID: types.UID(name)}, Since: metav1.NewTime(noon),
		Recovery: &v1.FaultRecovery{Mode: v1.RecoveryAutomatic, Policies: []string{"p"}, FailedRepairs: failed},
	}}
	if failed > 0 {
		f.Status.Recovery.LastFailureTime = &metav1.Time{Time: last}
	}
	return f
}

func breaking(b v1.RecoveryBreaker) *v1.RecoveryPolicy {
	return &v1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.RecoveryPolicySpec{Mode: v1.RecoveryAutomatic, Breaker: &b}}
}

// reconcile looks at the breakers, and returns the policy.
func (c *cluster) reconcile(t *testing.T) *v1.RecoveryPolicy {
	t.Helper()
	p := &v1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	if _, err := c.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p)}); err != nil {
		t.Fatal(err)
	}
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	return p
}

// modeIn is the mode of a fault in a pod of a namespace, as agents decide it.
func modeIn(p *v1.RecoveryPolicy, namespace string) v1.RecoveryMode {
	f := policy.Fault{
		Code: "StaleSubPath", Pod: &metav1.ObjectMeta{Namespace: namespace}, Namespace: &metav1.ObjectMeta{}, Node: &metav1.ObjectMeta{},
	}
	return policy.Decide(f, []*policy.Policy{policy.Compile(p, fault.Known())}, v1.RecoveryObserve, noon).Mode
}

// TestFaultsOfATenantStopNoOther: three pods on 3 of 10 nodes have the fault, and another namespace has it once. The breaker of the
// tenant opens, and no other. The same with failed repairs.
func TestFaultsOfATenantStopNoOther(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		breaker v1.RecoveryBreaker
		failed  int32
		message string
	}{
		"nodes":   {v1.RecoveryBreaker{MaximumNodesPercent: number(20)}, 0, "3 of 10 nodes have the fault, which is more than 20%, in pods of namespace tenant"},
		"repairs": {v1.RecoveryBreaker{FailedRepairs: number(3)}, 9, "6 repairs in a row have failed, in pods of namespace tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := []client.Object{breaking(tc.breaker), faultIn("shop", "n4", min(tc.failed, 1), noon)}
			for i := range 3 {
				objects = append(objects, faultIn("tenant", fmt.Sprint("n", i+1), tc.failed, noon))
			}
			c := newCluster(t, 10, objects...)
			p := c.reconcile(t)
			if len(p.Status.Breakers) != 1 || p.Status.Breakers[0].Namespace != "tenant" || p.Status.Breakers[0].Message != tc.message || p.Status.OpenBreakers != 1 {
				t.Errorf("breakers %+v", p.Status.Breakers)
			}
			if tenant, shop := modeIn(p, "tenant"), modeIn(p, "shop"); tenant != v1.RecoveryObserve || shop != v1.RecoveryAutomatic {
				t.Errorf("mode %s in the namespace of the tenant, %s in another", tenant, shop)
			}
			if e := <-c.events.Events; !strings.Contains(e, "Opened the breaker for StaleSubPath in namespace tenant: ") {
				t.Errorf("%q", e)
			}
		})
	}
}

// TestFaultsOfSeveralNamespacesStopAll: it is the code that is broken, not a tenant.
func TestFaultsOfSeveralNamespacesStopAll(t *testing.T) {
	t.Parallel()
	var objects []client.Object
	for i := range 6 {
		objects = append(objects, faultIn([]string{"tenant", "shop"}[i%2], fmt.Sprint("n", i+1), 0, noon))
	}
	p := newCluster(t, 10, append(objects, breaking(v1.RecoveryBreaker{MaximumNodesPercent: number(20)}))...).reconcile(t)
	if b := p.Status.Breaker("StaleSubPath", ""); b == nil || b.State != v1.BreakerOpen || modeIn(p, "bank") != v1.RecoveryObserve {
		t.Errorf("breakers %+v", p.Status.Breakers)
	}
}

// TestAFailureToComeKeepsNoBreakerOpen: one object of one node says that a thousand repairs fail in 2099. A person resets the breaker each
// minute.
func TestAFailureToComeKeepsNoBreakerOpen(t *testing.T) {
	t.Parallel()
	future := time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
	forged := faultIn("tenant", "n1", 1000, future)
	forged.Name, forged.Status.Pod = "forged", nil // also if it is of no pod, and so for all namespaces
	c := newCluster(t, 50, breaking(v1.RecoveryBreaker{FailedRepairs: number(3)}), forged, faultIn("tenant", "n1", 1000, future))
	for minute := range 60 {
		c.clock.Step(time.Minute)
		if p := c.reconcile(t); p.Status.OpenBreakers != 0 {
			t.Fatalf("minute %d: %+v", minute, p.Status.Breakers)
		}
	}
}

// TestATimeToComeIsThePresent: on the only node of a pool, a breaker that a person closes stays closed until a repair fails after that.
func TestATimeToComeIsThePresent(t *testing.T) {
	t.Parallel()
	r := newCluster(t, 1, faultIn("tenant", "n1", 3, noon.Add(time.Hour))).r
	e, err := r.newPass(t.Context(), policy.Compile(breaking(v1.RecoveryBreaker{FailedRepairs: number(3)}), fault.Known()), noon)
	must(t, err)
	counts, err := r.count(t.Context(), e)
	must(t, err)
	c := counts[breakerKey{"StaleSubPath", "", "tenant"}]
	if n, enough := c.failures(noon.Add(-time.Second), 3); n != 3 || !enough {
		t.Errorf("%d failures before noon", n)
	}
	if n, _ := c.failures(noon, 3); n != 0 {
		t.Errorf("%d failures after noon", n)
	}
}

// TestOneNodeOfAPoolOfItsOwnOpensNoBreaker: a policy selects three nodes, each in a pool of its own. No object of one of them opens a breaker, and
// the only node of a policy opens its own.
func TestOneNodeOfAPoolOfItsOwnOpensNoBreaker(t *testing.T) {
	t.Parallel()
	for selected, want := range map[string]int32{"": 0, "n1": 2} { // for the namespace, and for all
		p := breaking(v1.RecoveryBreaker{FailedRepairs: number(3), NodePoolLabel: "pool"})
		ofNode := faultIn("tenant", "n1", 1000, noon)
		ofNode.Name, ofNode.Status.Pod = "of-the-node", nil
		objects := []client.Object{p, faultIn("tenant", "n1", 1000, noon), faultIn("shop", "n1", 1000, noon), ofNode}
		if selected != "" {
			p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": selected}}
			objects = []client.Object{p, faultIn("tenant", "n1", 1000, noon), ofNode}
		}
		for _, name := range []string{"n1", "n2", "n3"} {
			objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": name}}})
		}
		if p := newCluster(t, 0, objects...).reconcile(t); p.Status.OpenBreakers != want {
			t.Errorf("of node %q: %d are open, want %d: %+v", selected, p.Status.OpenBreakers, want, p.Status.Breakers)
		}
	}
}

// TestBreakersAreShared: their number is bounded, and a tenant with a breaker in each pool leaves room in the status for those of others.
func TestBreakersAreShared(t *testing.T) {
	t.Parallel()
	p := breaking(v1.RecoveryBreaker{FailedRepairs: number(1)})
	counts := map[breakerKey]*counted{}
	for i := range 2 * v1.MaxBreakers {
		counts[breakerKey{"StaleSubPath", fmt.Sprint(i), "tenant"}] = on(1, 1).withFailures(noon, 1)
	}
	counts[breakerKey{"StaleSubPath", "z", "shop"}] = on(1, 1).withFailures(noon, 1)
	counts[breakerKey{"StaleSubPath", "z", ""}] = on(1, 1).failedIn("", noon, 1).forAll()
	if p.Status.Breakers, _ = decide(p, counts, noon); len(p.Status.Breakers) != v1.MaxBreakers {
		t.Errorf("%d breakers", len(p.Status.Breakers))
	}
	for _, namespace := range []string{"shop", ""} {
		if p.Status.BreakerOf("StaleSubPath", "z", namespace) == nil {
			t.Errorf("the breaker of namespace %q is left out", namespace)
		}
	}
}
