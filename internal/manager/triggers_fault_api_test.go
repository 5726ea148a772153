// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/metric/metrictest"
)

// fault makes a MountFault of a pod, as the agent of its node does.
func (w *world) fault(t testing.TB, pod *v1.PodReference, code string) *v1.MountFault {
	t.Helper()
	var p corev1.Pod
	must(t, w.Client.Get(t.Context(), client.ObjectKey{Namespace: pod.Namespace, Name: pod.Name}, &p))
	f := newFault(&p, code)
	w.MustCreate(t, f)
	return f
}

// newFault is one of a pod, not created yet.
func newFault(p *corev1.Pod, code string) *v1.MountFault {
	f := &v1.MountFault{Status: v1.MountFaultStatus{
		Code: code, Target: p.Name, Impact: v1.ImpactNextStart, Heal: v1.HealSafe, Node: p.Spec.NodeName, Container: "web", Volume: "conf",
		Pod: &v1.FaultPod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, Since: metav1.Now(), LastSeen: metav1.Now(),
	}}
	f.Namespace, f.GenerateName, f.Labels = p.Namespace, p.Name+"-", map[string]string{v1.LabelNode: v1.NodeLabelValue(p.Spec.NodeName)}
	return f
}

// faultTemplate matches the faults of the world and of no other test.
func (w *world) faultTemplate(more v1.MountFaultTemplate) v1.SourceTemplate {
	more.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"world": w.ns}}
	return v1.SourceTemplate{MountFaultTemplate: &more}
}

// mark gives the namespace of the world a label. Its objects are deleted for the tests that share the API server.
func (w *world) mark(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, kind := range []client.Object{&v1.Diagnosis{}, &v1.MountFault{}, &corev1.Pod{}} {
			if err := w.Client.DeleteAllOf(ctx, kind, client.InNamespace(w.ns)); err != nil {
				t.Error(err)
			}
		}
	})
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": {"world": "`+w.ns+`"}}}`))
	must(t, w.Client.Patch(t.Context(), ns, patch))
}

// A fault that matches makes one Diagnosis of its pod, bound to its node: one that was there before the Trigger, and one that
// comes. With the manager's own rights, other codes, pods and nodes make none.
func TestMountFaultTrigger(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		w.mark(t)
		w.run(t)
		node, other := w.node(t), w.node(t)
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": {"pool": "`+w.ns+`"}}}`))
		must(t, w.Client.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch))
		pod := w.pod(t, node)
		w.fault(t, pod, "StaleSubPath")
		tr := w.trigger(t, v1.TriggerSpec{SourceTemplate: w.faultTemplate(v1.MountFaultTemplate{
			Codes: []string{"StaleSubPath", "DisconnectedFUSE"}, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"pool": w.ns}},
		})})
		w.count(t, tr, 1)
		d := w.made(t, tr)[0]
		w.Until(t, &d, func() bool { return d.Labels[v1.LabelNode] == node })
		if d.Spec.PodReference.Name != pod.Name || d.Spec.PodReference.Container != "" ||
			!strings.Contains(d.Annotations[v1.AnnotationMountFault], `"code":"StaleSubPath"`) {
			t.Errorf("Diagnosis = %+v", d)
		}
		w.fault(t, w.pod(t, node), "HungMount")
		w.fault(t, w.pod(t, other), "StaleSubPath")
		second := w.pod(t, node)
		w.fault(t, second, "DisconnectedFUSE")
		w.count(t, tr, 2)
		// One can be compared twice: when it comes, and for the Trigger that is new.
		w.Until(t, tr, func() bool { return tr.Status.Fired == 2 && tr.Status.Matched-tr.Status.Repeated == 2 })
		exposed, err := metrics.Registry.Gather()
		must(t, err)
		for _, problem := range metrictest.Problems(exposed, Metrics()) {
			t.Error(problem)
		}
	})
}
