// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/sentinel"
	"kubediag.org/kubediag/test/apitest"
)

// guardedAgent is the part of an agent that obeys policies, with the rights of an agent.
type guardedAgent struct {
	*agent
	env *apitest.Env
	pod *corev1.Pod
	cut atomic.Bool // the API server cannot be reached
}

// startGuard starts it on a node of that name, whose label of the same name policies select.
func startGuard(t *testing.T, name string, mode sentinel.Mode) *guardedAgent {
	t.Helper()
	g := &guardedAgent{env: installDefault(t)}
	g.env.MustCreate(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": name}}})
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.env.MustCreate(t, space)
	g.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "p", UID: "u"}}
	n := newTestNode(t, name, g.env.Config)
	n.options.SentinelMode = mode
	n.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return apitest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if g.cut.Load() {
				return nil, errors.New("connection refused")
			}
			return next.RoundTrip(r)
		})
	})
	freshness := &guard.Freshness{}
	manager, err := newManager(n.config, n.options, freshness, false)
	must(t, err)
	g.agent = &agent{options: n.options, manager: manager, freshness: freshness}
	must(t, g.newGuard(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 3)
	go func() { done <- manager.GetCache().Start(ctx) }()
	go func() { done <- g.guard.Start(ctx) }()
	l := &agentLease{
		client: manager.GetClient(), namespace: "kubediag", node: name, renewal: 200 * time.Millisecond, duration: time.Second,
		now: time.Now, renewed: freshness.Answered,
	}
	go func() { done <- l.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	return g
}

func (g *guardedAgent) tryAcquire(t *testing.T) bool {
	t.Helper()
	f := fault.Finding{Code: fault.StaleSubPath, Pod: fault.Pod{UID: string(g.pod.UID)}, Container: "c", Volume: "v"}
	return g.guard.Acquire(t.Context(), f, g.pod)
}

// awaitAllowed waits until repairs are allowed or not.
func (g *guardedAgent) awaitAllowed(t *testing.T, allowed bool) {
	t.Helper()
	apitest.Eventually(t, func() error {
		if g.tryAcquire(t) != allowed {
			return fmt.Errorf("allowed: %t, %+v", !allowed, g.guard.Decide(fault.StaleSubPath, g.pod))
		}
		return nil
	})
}

// createPolicy creates a policy for the node.
func (g *guardedAgent) createPolicy(t *testing.T, mode v1.RecoveryMode, change func(*v1.RecoveryPolicySpec)) *v1.RecoveryPolicy {
	t.Helper()
	p := &v1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{GenerateName: g.options.NodeName + "-"}, Spec: v1.RecoveryPolicySpec{
		Mode: mode, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"test": g.options.NodeName}},
	}}
	if change != nil {
		change(&p.Spec)
	}
	g.env.MustCreate(t, p)
	return p
}

func (g *guardedAgent) patchObject(t *testing.T, o client.Object, change func()) {
	t.Helper()
	before, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		t.Fatalf("%T", o)
	}
	change()
	must(t, g.env.Client.Patch(t.Context(), o, client.MergeFrom(before)))
}

// TestAgentObeysPolicies: from the API server to the decision, with the rights that the manifests give. A pause
// counts, and a policy that is deleted allows nothing any more.
func TestAgentObeysPolicies(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "policies", sentinel.Observe)
	if g.tryAcquire(t) {
		t.Error("a repair without a policy")
	}
	p := g.createPolicy(t, v1.RecoveryAutomatic, nil)
	g.awaitAllowed(t, true)
	g.patchObject(t, p, func() { p.Spec.Paused = true })
	g.awaitAllowed(t, false)
	g.patchObject(t, p, func() { p.Spec.Paused = false })
	g.awaitAllowed(t, true)
	careful := g.createPolicy(t, v1.RecoveryApprove, nil)
	g.awaitAllowed(t, false)
	r := g.guard.Recovery([]fault.Finding{{Code: fault.StaleSubPath}}, g.pod)
	if r.Mode != v1.RecoveryApprove || r.Message != "policy "+careful.Name+" wants approval" || len(r.Policies) != 2 {
		t.Errorf("%+v", r)
	}
	for _, gone := range []*v1.RecoveryPolicy{careful, p} {
		must(t, g.env.Client.Delete(t.Context(), gone))
		g.awaitAllowed(t, gone == careful)
	}
}

// TestSlotsOfABudget: an agent creates a Lease for each share of the cluster's budget, and repairs no more than it
// allows.
func TestSlotsOfABudget(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "slots", sentinel.Observe)
	g.createPolicy(t, v1.RecoveryAutomatic, func(s *v1.RecoveryPolicySpec) {
		s.Budgets = &v1.RecoveryBudgets{Cluster: &v1.RepairBudget{AtOnce: 4, PerHour: 1}}
	})
	g.awaitAllowed(t, true)
	for range 3 {
		g.awaitAllowed(t, true)
	}
	if g.tryAcquire(t) {
		t.Error("a fifth repair")
	}
	var slots coordinationv1.LeaseList
	must(t, g.env.Client.List(t.Context(), &slots, client.InNamespace("kubediag"), client.HasLabels{v1.LabelRepairSlot}))
	if len(slots.Items) != 2 || *slots.Items[0].Spec.HolderIdentity != "slots" {
		t.Errorf("slots %+v", slots.Items)
	}
}

// TestAgentDistrustsOldPolicies: an agent that cannot reach the API server knows since when.
func TestAgentDistrustsOldPolicies(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "cut-off", sentinel.Observe)
	g.createPolicy(t, v1.RecoveryAutomatic, func(s *v1.RecoveryPolicySpec) {
		s.MaximumStalenessSeconds = new(int32)
		*s.MaximumStalenessSeconds = 30
	})
	g.awaitAllowed(t, true)
	g.cut.Store(true)
	start := time.Now()
	for time.Since(start) < 4*time.Second {
		if age, known := g.freshness.Age(time.Now()); !known || age > time.Since(start)+2*time.Second {
			t.Fatalf("age %s, %t", age, known)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if age, _ := g.freshness.Age(start.Add(31 * time.Second)); age <= 30*time.Second {
		t.Errorf("age %s", age)
	}
	g.cut.Store(false)
	apitest.Eventually(t, func() error {
		if age, _ := g.freshness.Age(time.Now()); age > time.Second {
			return fmt.Errorf("age %s", age)
		}
		return nil
	})
}
