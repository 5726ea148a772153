// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
)

// selecting is a policy that repairs pods with a label, until so many repairs have failed.
func selecting(name, label string, failed int32) *v1.RecoveryPolicy {
	p := automatic(func(s *v1.RecoveryPolicySpec) {
		s.Breaker = &v1.RecoveryBreaker{FailedRepairs: number(failed)}
		s.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"of": label}}
	})
	p.Name = name
	return p
}

// labelledPod is a pod of a namespace with a label.
func labelledPod(namespace, label string, i int) *corev1.Pod {
	p := podIn(namespace, i)
	p.Labels = map[string]string{"of": label}
	return p
}

// fail has repairs of a pod fail, as many as are allowed up to tries, and returns how many.
func (g *Guard) fail(t *testing.T, pod *corev1.Pod, tries int) (failed int) {
	t.Helper()
	for failed < tries && g.repair(t, pod, errors.New("busy")) {
		failed++
	}
	return failed
}

// TestRowsOfTwoPolicies: failures under the policy of one tenant are none under that of another.
func TestRowsOfTwoPolicies(t *testing.T) {
	t.Parallel()
	for name, namespace := range map[string]string{"two namespaces": "shop", "one namespace": "tenant"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := begin(t, &server{})
				g.Set(selecting("tenant", "tenant", 100))
				g.Set(selecting("shop", "shop", 3))
				tenant, shop := labelledPod("tenant", "tenant", 0), labelledPod(namespace, "shop", 1)
				if n := g.fail(t, tenant, 99); n != 99 {
					t.Errorf("%d repairs of the tenant", n)
				}
				if !g.repair(t, shop, nil) {
					t.Errorf("shop is not repaired: %+v", g.Decide(fault.StaleSubPath, shop))
				}
				if n := g.fail(t, shop, 9); n != 3 {
					t.Errorf("%d repairs of shop failed", n)
				}
				if g.fail(t, tenant, 2) != 1 {
					t.Error("a success of shop has ended the row of the tenant")
				}
			})
		})
	}
}

// TestRowsOfNamespaces: under one policy, failures of one namespace stop its own repairs, and those of several stop all.
func TestRowsOfNamespaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		g.Set(automatic(func(s *v1.RecoveryPolicySpec) { s.Breaker = &v1.RecoveryBreaker{FailedRepairs: number(4)} }))
		tenant, shop, bank := podIn("tenant", 0), podIn("shop", 0), podIn("bank", 0)
		if n := g.fail(t, tenant, 9); n != 4 {
			t.Errorf("%d repairs of the tenant", n)
		}
		d := g.Decide(fault.StaleSubPath, tenant)
		if want := "4 repairs of StaleSubPath in a row have failed on the node in namespace tenant: the breaker of policy p opens"; d.Why != want {
			t.Errorf("%q, want %q", d.Why, want)
		}
		if n := g.fail(t, shop, 1); n != 1 || !g.repair(t, bank, nil) {
			t.Error("a failure of another namespace has stopped all")
		}
		if !g.repair(t, shop, nil) || g.repair(t, tenant, nil) {
			t.Error("a success of shop has ended the row of the tenant, or is none")
		}
		g.fail(t, shop, 2)
		if d := g.Decide(fault.StaleSubPath, bank); !strings.Contains(d.Why, "6 repairs of StaleSubPath in a row have failed on the node in several namespaces") {
			t.Errorf("failures of two namespaces: %+v", d)
		}
	})
}

// TestBreakerOfANamespace: one that is open holds the repairs of that namespace. When it is closed, its row has ended, and no other.
func TestBreakerOfANamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		p := automatic(func(s *v1.RecoveryPolicySpec) { s.Breaker = &v1.RecoveryBreaker{FailedRepairs: number(3)} })
		g.Set(p)
		tenant, shop := podIn("tenant", 0), podIn("shop", 0)
		g.fail(t, tenant, 3)
		g.fail(t, shop, 1)
		open := p.DeepCopy()
		open.Status.Breakers = []v1.BreakerStatus{{Code: string(fault.StaleSubPath), Namespace: "tenant", State: v1.BreakerOpen, Message: "why"}}
		g.Set(open)
		if d := g.Decide(fault.StaleSubPath, tenant); d.Why != "the breaker of policy p for StaleSubPath is open: why" {
			t.Errorf("%+v", d)
		}
		if d := g.Decide(fault.StaleSubPath, shop); d.Mode != v1.RecoveryAutomatic {
			t.Errorf("%+v", d)
		}
		closed := open.DeepCopy()
		closed.Status.Breakers[0].State, closed.Status.Breakers[0].ClosedTime = v1.BreakerClosed, new(metav1.Now())
		g.Set(closed)
		if n := g.fail(t, tenant, 1); n != 1 {
			t.Errorf("the row of the tenant goes on: %+v", g.Decide(fault.StaleSubPath, tenant))
		}
		if n := g.fail(t, shop, 9); n != 2 {
			t.Errorf("the row of shop has ended: %d more", n)
		}
	})
}

// TestFailuresAreShared: a tenant whose faults are as many as are remembered leaves room for those of others.
func TestFailuresAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		for i := range maxFaults {
			f := faultOf(podIn("tenant", i%50))
			f.Pod.Namespace, f.Volume = "tenant", fmt.Sprint(i)
			g.Ended(f.Key(), f.Pod, errors.New("busy"))
		}
		shop := podIn("shop", 0)
		f := faultOf(shop)
		f.Pod.Namespace = "shop"
		g.Ended(f.Key(), f.Pod, errors.New("busy"))
		if r := g.Recovery([]fault.Finding{f}, shop); r.FailedRepairs != 1 {
			t.Errorf("%+v", r)
		}
	})
}
