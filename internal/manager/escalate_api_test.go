// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// lasting creates a pod of a node and a fault of it that has lasted for two minutes, as its agent would.
func (w *world) lasting(t *testing.T, node string, recovery v1.FaultRecovery) *v1.MountFault {
	t.Helper()
	pod := w.newPod(node)
	w.MustCreate(t, pod)
	f := &v1.MountFault{Status: v1.MountFaultStatus{
		Code: "HungMount", Node: node, Impact: v1.ImpactNow, Heal: v1.HealPerson, LastSeen: metav1.Now(), Recovery: &recovery,
		Pod: &v1.FaultPod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, Since: metav1.NewTime(time.Now().Add(-2 * time.Minute)),
	}}
	f.Namespace, f.Name = w.ns, pod.Name
	w.MustCreate(t, f)
	t.Cleanup(func() { // other managers would act, too
		if err := client.IgnoreNotFound(w.Client.Delete(context.WithoutCancel(t.Context()), f)); err != nil {
			t.Error(err)
		}
	})
	return f
}

// TestPolicyHasPodsEvicted: one Diagnosis in the mode of the policies, for faults that have lasted, of pods that the agent would evict.
func TestPolicyHasPodsEvicted(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		node := w.node(t)
		w.run(t)
		want := map[string]v1.DiagnosisMode{}
		for mode, diagnosis := range map[v1.RecoveryMode]v1.DiagnosisMode{
			v1.RecoveryAutomatic: v1.ModeRecover, v1.RecoveryApprove: v1.ModeApprove, v1.RecoveryPlan: v1.ModePlan, v1.RecoveryObserve: "",
		} {
			f := w.lasting(t, node, v1.FaultRecovery{Mode: mode, Policies: []string{"hung"}, EvictAfterSeconds: 60})
			if diagnosis != "" {
				want[f.Status.Pod.Name] = diagnosis
			}
		}
		w.lasting(t, node, v1.FaultRecovery{Mode: v1.RecoveryAutomatic, EvictAfterSeconds: 3600})
		w.lasting(t, node, v1.FaultRecovery{Mode: v1.RecoveryAutomatic, EvictAfterSeconds: 60, EvictionRefusal: "not allowed"})
		apitest.Eventually(t, func() error {
			var list v1.DiagnosisList
			if err := w.Client.List(t.Context(), &list, client.InNamespace(w.ns)); err != nil {
				return err
			}
			if len(list.Items) != len(want) {
				return fmt.Errorf("%d Diagnoses", len(list.Items))
			}
			for _, d := range list.Items {
				if d.Spec.OperationSet != "pod-evict-op-set" || d.Spec.Mode != want[d.Spec.PodReference.Name] || d.Labels[v1.LabelNode] != node ||
					d.Labels[v1.LabelOrigin] != v1.OriginPolicy || d.Annotations[v1.AnnotationPolicies] != "hung" || d.Spec.Parameters[v1.ParamEvictAllowed] != "true" {
					return fmt.Errorf("%+v, %+v", d.ObjectMeta, d.Spec)
				}
			}
			return nil
		})
		must(t, w.Client.DeleteAllOf(t.Context(), &v1.Diagnosis{}, client.InNamespace(w.ns)))
	})
}

// cordoned returns the nodes of the world that are cordoned.
func (w *world) cordoned(t *testing.T) (found []corev1.Node) {
	t.Helper()
	var nodes corev1.NodeList
	must(t, w.Client.List(t.Context(), &nodes, client.MatchingLabels{"test": w.ns}))
	for i := range nodes.Items {
		if nodes.Items[i].Spec.Unschedulable {
			found = append(found, nodes.Items[i])
		}
	}
	return found
}

// mayCordon gives the manager the right that ships.
func (w *world) mayCordon(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("../../config/components/cordon/cordoner.yaml")
	must(t, err)
	role := apitest.Objects(t, string(text))[0]
	role.SetName(w.ns)
	w.MustCreate(t, role)
	w.bind(t, w.config.Impersonate.UserName, w.ns, true)
	w.may(t, w.config.Impersonate.UserName, grant{everywhere: true, resource: "nodes", verb: "patch"})
}

// TestPolicyCordons: all of five nodes have faults. Without the right the policy says so. With it, one node is cordoned and no other.
func TestPolicyCordons(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	w.options.PolicyInterval = 200 * time.Millisecond
	p := w.policy(t, v1.RecoveryPolicySpec{Mode: v1.RecoveryAutomatic, Escalation: &v1.RecoveryEscalation{
		Cordon: &v1.CordonEscalation{AfterSeconds: 60, MinimumPods: new(int32(2))},
	}})
	for range 5 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-", Labels: map[string]string{"test": w.ns}}}
		w.MustCreate(t, n)
		for range 2 {
			w.lasting(t, n.Name, v1.FaultRecovery{Mode: v1.RecoveryAutomatic, Policies: []string{p.Name}})
		}
	}
	w.run(t)
	w.Until(t, p, func() bool { return condition(p.Status.Conditions, v1.ConditionEscalation, v1.ReasonMissingRight) })
	if got := w.cordoned(t); len(got) > 0 || len(w.writes("/nodes/")) > 0 {
		t.Fatalf("cordoned %+v, writes %v", got, w.writes("/nodes/"))
	}
	w.mayCordon(t)
	w.Until(t, p, func() bool { return condition(p.Status.Conditions, v1.ConditionEscalation, v1.ReasonCordonHeld) })
	got := w.cordoned(t)
	if len(got) != 1 || got[0].Annotations[v1.AnnotationCordoned] == "" {
		t.Fatalf("cordoned %+v", got)
	}
	w.policyEvent(t, p, "NodeCordoned")
}
