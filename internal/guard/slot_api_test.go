// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package guard

import (
	"errors"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/policy"
	"kubediag.org/kubediag/internal/share"
	"kubediag.org/kubediag/test/apitest"
)

func TestMain(m *testing.M) { apitest.Main(m) }

// TestTakenOverAgentLeavesSlots has an agent that was taken over create all slots of a divided budget, under the policy for agents. It gets
// its quarter, the same as the agent itself would ask for, and the agent of another node gets slots of its own.
func TestTakenOverAgentLeavesSlots(t *testing.T) {
	env := apitest.Start(t)
	ns := env.Namespace(t)
	config := env.Limited(t, "agent", ns)
	env.PolicyFor(t, "agent-node.yaml", "agent", config.Impersonate.UserName)
	b := newSlotBudget(&policy.Policy{Object: automatic(func(*v1.RecoveryPolicySpec) {})}, "the cluster", share.Owner{}, &v1.RepairBudget{AtOnce: 100, PerHour: 1}, true)
	begins := b.number(time.Now()) * int64(b.period) / int64(time.Millisecond)
	slot := func(node string, i int) *coordinationv1.Lease {
		l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &node}}
		l.Namespace, l.Name = ns, fmt.Sprintf("%s%s-%d-%d", slotPrefix, b.key, begins, i)
		l.Labels = map[string]string{v1.LabelRepairSlot: b.key}
		return l
	}
	const bad, good = "ip-10-0-3-17.example.org", "worker-2"
	taken := agentOf(t, config, bad)
	apitest.Eventually(t, func() error { // until the policy is in force
		if err := taken.Create(t.Context(), slot(good, 0), client.DryRunAll); !apierrors.IsForbidden(err) {
			return errors.Join(errors.New("it is not refused"), err)
		}
		return nil
	})
	for _, node := range []string{bad, good, "a", "n1", "0", "z9.-x"} {
		c := agentOf(t, config, node)
		for i := range b.slots {
			if err := c.Create(t.Context(), slot(node, i), client.DryRunAll); (err == nil) != b.mayHave(node, i) {
				t.Errorf("slot %d of %s: %v", i, node, err)
			}
		}
	}
	got := 0
	for i := range b.slots {
		if taken.Create(t.Context(), slot(bad, i)) == nil {
			got++
		}
	}
	if got != b.most() {
		t.Errorf("%d slots of %d for one node", got, b.slots)
	}
	o := &slots{
		node: good, namespace: ns, client: agentOf(t, config, good), claims: map[string]*claim{},
		room: share.Room{Places: maxSlotClaims},
	}
	o.claims[b.key] = &claim{period: b.number(time.Now()), namespaces: map[string]*claimant{}}
	for range 3 * b.most() { // each asks for three in random order
		if err := o.claim(t.Context(), b, "shop"); err != nil {
			t.Fatal(err)
		}
	}
	if c := o.claims[b.key]; c.slots == 0 {
		t.Error("the agent of another node got none")
	}
}

// agentOf is a client with the token of the agent of a node.
func agentOf(t *testing.T, config *rest.Config, node string) client.Client {
	t.Helper()
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
