// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// policy creates a policy that selects the nodes of the test.
func (w *world) policy(t testing.TB, spec v1.RecoveryPolicySpec) *v1.RecoveryPolicy {
	t.Helper()
	p := &v1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{GenerateName: w.ns + "-"}, Spec: spec}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"test": w.ns}}
	w.MustCreate(t, p)
	return p
}

// faulty creates a node that a policy selects, and a MountFault of it as its agent would.
func (w *world) faulty(t testing.TB, p *v1.RecoveryPolicy, failed int32) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-", Labels: map[string]string{"test": w.ns, "zone": "a"}}}
	w.MustCreate(t, n)
	f := &v1.MountFault{Status: v1.MountFaultStatus{
		Code: "StaleSubPath", Node: n.Name, Impact: v1.ImpactNextStart, Heal: v1.HealAutomatic, Since: metav1.Now(), LastSeen: metav1.Now(),
		Recovery: &v1.FaultRecovery{Mode: v1.RecoveryAutomatic, Policies: []string{p.Name}, FailedRepairs: failed},
	}}
	if failed > 0 {
		now := metav1.Now()
		f.Status.Recovery.LastFailureTime = &now
	}
	f.Namespace, f.GenerateName = w.ns, "fault-"
	w.MustCreate(t, f)
}

func TestPolicyIsChecked(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		w.options.PolicyInterval = 200 * time.Millisecond
		w.run(t)
		p := w.policy(t, v1.RecoveryPolicySpec{Mode: v1.RecoveryAutomatic, FaultCodes: []string{"StaleSubPath"}})
		w.Until(t, p, func() bool { return condition(p.Status.Conditions, v1.ConditionEffective, v1.ReasonEffective) })
		careful := w.policy(t, v1.RecoveryPolicySpec{Mode: v1.RecoveryObserve})
		w.Until(t, p, func() bool { return condition(p.Status.Conditions, v1.ConditionEffective, v1.ReasonOverruled) })
		w.Until(t, careful, func() bool { return condition(careful.Status.Conditions, v1.ConditionEffective, v1.ReasonNoRepair) })
		must(t, w.Client.Delete(t.Context(), careful))
		w.Until(t, p, func() bool { return condition(p.Status.Conditions, v1.ConditionEffective, v1.ReasonEffective) })
		bad := w.policy(t, v1.RecoveryPolicySpec{
			Mode: v1.RecoveryAutomatic, Windows: []v1.RecoveryWindow{{Schedule: "nonsense", DurationSeconds: 60}},
		})
		w.Until(t, bad, func() bool { return condition(bad.Status.Conditions, v1.ConditionReady, v1.ReasonInvalidSpec) })
		w.Until(t, p, func() bool { return condition(p.Status.Conditions, v1.ConditionReady, v1.ReasonReady) })
		never := w.policy(t, v1.RecoveryPolicySpec{
			Mode: v1.RecoveryAutomatic, Windows: []v1.RecoveryWindow{{Schedule: "0 0 31 2 *", DurationSeconds: 60}},
		})
		w.Until(t, never, func() bool { return condition(never.Status.Conditions, v1.ConditionEffective, v1.ReasonNeverFires) })
		closed := w.policy(t, v1.RecoveryPolicySpec{ // the day after tomorrow
			Mode: v1.RecoveryAutomatic, FaultCodes: []string{"HungMount"},
			Windows: []v1.RecoveryWindow{{Schedule: time.Now().UTC().Add(48 * time.Hour).Format("0 0 2 1 *"), DurationSeconds: 60}},
		})
		w.Until(t, closed, func() bool {
			return condition(closed.Status.Conditions, v1.ConditionEffective, v1.ReasonOutsideWindow) && closed.Status.NextWindowTime.After(time.Now())
		})
		useless := w.policy(t, v1.RecoveryPolicySpec{Mode: v1.RecoveryAutomatic, FaultCodes: []string{"MissingBindSource"}})
		w.Until(t, useless, func() bool { return condition(useless.Status.Conditions, v1.ConditionEffective, v1.ReasonNoRepair) })
	})
}

// TestBreaker: failed repairs open it, the share of nodes opens it, and a person closes it.
func TestBreaker(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	w.options.PolicyInterval = 200 * time.Millisecond
	failed, percent, one := int32(3), int32(40), int32(1)
	row := w.policy(t, v1.RecoveryPolicySpec{Mode: v1.RecoveryAutomatic, Breaker: &v1.RecoveryBreaker{FailedRepairs: &failed, NodePoolLabel: "zone"}})
	share := w.policy(t, v1.RecoveryPolicySpec{
		Mode: v1.RecoveryAutomatic, Breaker: &v1.RecoveryBreaker{MaximumNodesPercent: &percent, MinimumFaultyNodes: &one},
	})
	w.faulty(t, row, 2)
	w.faulty(t, row, 0)
	w.run(t)
	w.Until(t, row, func() bool { return condition(row.Status.Conditions, v1.ConditionReady, v1.ReasonReady) })
	if row.Status.OpenBreakers != 0 {
		t.Errorf("%+v", row.Status)
	}
	w.faulty(t, row, 1)
	w.Until(t, row, func() bool { return row.Status.OpenBreakers == 1 })
	if b := row.Status.Breaker("StaleSubPath", "a"); b == nil || b.Reason != v1.ReasonFailedRepairs || b.OpenedTime == nil {
		t.Errorf("%+v", row.Status)
	}
	w.policyEvent(t, row, "BreakerOpened")
	before := client.MergeFrom(row.DeepCopy())
	now := metav1.Now()
	row.Spec.Breaker.ResetTime = &now
	must(t, w.Client.Patch(t.Context(), row, before))
	w.Until(t, row, func() bool { return row.Status.OpenBreakers == 0 })
	w.policyEvent(t, row, "BreakerClosed")
	w.faulty(t, share, 0)
	w.faulty(t, share, 0)
	w.faulty(t, share, 0)
	w.Until(t, share, func() bool { return share.Status.OpenBreakers == 1 })
	if share.Status.Breakers[0].Reason != v1.ReasonTooManyNodes {
		t.Errorf("%+v", share.Status)
	}
}

// policyEvent waits for an Event. Those of objects without a namespace are in the namespace default.
func (w *world) policyEvent(t testing.TB, p *v1.RecoveryPolicy, reason string) {
	t.Helper()
	apitest.Eventually(t, func() error {
		var events corev1.EventList
		if err := w.Client.List(t.Context(), &events, client.InNamespace("default")); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == p.Name && e.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("no Event %s among %d", reason, len(events.Items))
	})
}
