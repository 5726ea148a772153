// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/processor/volume"
	"kubediag.org/kubediag/test/apitest"
)

// escalating is an agent that evicts under a policy of its node. Every pod has a dead volume.
func escalating(t *testing.T, name string) (a *approvable, p *v1.RecoveryPolicy) {
	t.Helper()
	env := installDefault(t)
	a = &approvable{testNode: newTestNode(t, name, env.Config), env: env, obeys: true}
	createOperations(t, env, name, "/processor/podEvictRecover")
	env.MustCreate(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": name}}})
	p = &v1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.RecoveryPolicySpec{
		Mode: v1.RecoveryAutomatic, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"test": name}},
		Escalation: &v1.RecoveryEscalation{Evict: &v1.EvictEscalation{AfterSeconds: 60}},
		Budgets:    &v1.RecoveryBudgets{Node: &v1.RepairBudget{AtOnce: 1, PerHour: 1}},
	}}
	env.MustCreate(t, p)
	root, err := kubelet.Local(t.TempDir())
	must(t, err)
	a.evictor = newTestEvictor(t, env.Config)
	a.other = &volume.EvictRecoverer{
		Pods: &nodePods{node: name, cache: env.Client, live: env.Client}, Kubelet: root, Judge: deadVolumes{}, Allowed: true,
	}
	a.startAgent(t)
	return a, p
}

// evict makes a pod, and the Diagnosis with which the manager has it evicted.
func (a *approvable) evict(t *testing.T, name string) (*corev1.Pod, *v1.Diagnosis) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "u", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{
			NodeName: a.name, TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
	a.env.MustCreate(t, pod)
	d := a.diagnosis(name, a.name)
	d.Labels[v1.LabelOrigin] = v1.OriginPolicy
	d.Spec.Parameters = map[string]string{v1.ParamEvictAllowed: "true"}
	d.Spec.Mode, d.Spec.PodReference = v1.ModeRecover, &v1.PodReference{Namespace: pod.Namespace, Name: pod.Name}
	a.bind(t, a.env, d)
	return pod, d
}

// TestPolicyEvictsPod: from the Diagnosis of a policy to the pod that is gone, and not beyond what the policy allows.
func TestPolicyEvictsPod(t *testing.T) {
	t.Parallel()
	const name = "escalate"
	a, p := escalating(t, name)
	pod, d := a.evict(t, name+"-first")
	if d = awaitPhase(t, a.env, d, v1.DiagnosisSucceeded); d.Status.Outcome != v1.OutcomeHealed {
		t.Errorf("status %+v", d.Status)
	}
	if err := a.env.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); !apierrors.IsNotFound(err) {
		t.Errorf("pod: %v, deleted %v", err, pod.DeletionTimestamp)
	}
	a.refused(t, name+"-second", "held by policy: the budget of policy "+name+" for the node is used up")
	before := client.MergeFrom(p.DeepCopy())
	p.Spec.Escalation = nil
	must(t, a.env.Client.Patch(t.Context(), p, before))
	a.refused(t, name+"-third", "held by policy: policy "+name+" has no spec.escalation.evict")
}

// refused makes a Diagnosis that fails for this reason, and whose pod stays.
func (a *approvable) refused(t *testing.T, name, why string) {
	t.Helper()
	pod, d := a.evict(t, name)
	d = awaitPhase(t, a.env, d, v1.DiagnosisFailed)
	if c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete); !strings.Contains(c.Message, why) || c.Reason != v1.ReasonRepairHeld || d.Status.Outcome != v1.OutcomeFaultFound {
		t.Errorf("outcome %s, condition %+v", d.Status.Outcome, c)
	}
	if err := expectPodThere(t, apitest.Clientset(t, a.env.Config), pod); err != nil {
		t.Error(err)
	}
}
