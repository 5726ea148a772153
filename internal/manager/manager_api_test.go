// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// A Diagnosis with the set of the walkthrough, which the manager has installed, is bound to the node at the cost of two writes.
func TestWalkthrough(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		w.options.AgentCheckInterval = time.Minute // nobody plays the agent here
		w.run(t)
		node := w.node(t)
		ref := w.pod(t, node)
		d := w.diagnose(t, v1.DiagnosisSpec{OperationSet: "subpath-remount-op-set", PodReference: ref})
		w.Until(t, d, func() bool { return d.Labels[v1.LabelNode] == node && d.Spec.NodeName == node && d.HasPlace() })
		set := &v1.OperationSet{}
		set.Name = "subpath-remount-op-set"
		w.Until(t, set, func() bool { return set.Status.Ready })
		if set.Status.PathCount != 1 || len(set.Status.Paths) != 1 || len(set.Status.Paths[0]) != 4 || set.Status.AdjacencyListHash == "" {
			t.Errorf("status = %+v", set.Status)
		}
		op := &v1.Operation{}
		op.Name = "subpath-remount-recover"
		w.Until(t, op, func() bool {
			return op.Status.Target == "subpathRemountRecover" && op.Status.Kind == v1.ProcessorBuiltIn
		})
		if got := w.writes("/" + w.ns + "/diagnoses/"); len(got) != 2 || strings.HasSuffix(got[0], "/status") || !strings.HasSuffix(got[1], "/status") {
			t.Errorf("binding took %q", got)
		}
	})
}

// Every set that ships is installed, and is ready.
func TestWhatShipsIsReady(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		w.run(t)
		files, err := filepath.Glob("../../config/operations/*.yaml")
		if err != nil || len(files) < 7 {
			t.Fatalf("%q, %v", files, err)
		}
		for _, file := range files {
			manifest, err := os.ReadFile(file)
			must(t, err)
			for _, o := range apitest.Objects(t, string(manifest)) {
				if o.GetKind() == "OperationSet" {
					set := &v1.OperationSet{}
					set.Name = o.GetName()
					w.Until(t, set, func() bool { return set.Status.Ready })
				}
			}
		}
	})
}

// Names are as long, and have as many dots, as the API server allows.
func TestLongNames(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		w.run(t)
		n := &corev1.Node{}
		n.Name = strings.Repeat("node.", 20) + w.ns
		w.MustCreate(t, n)
		d := &v1.Diagnosis{}
		d.Namespace, d.Name = w.ns, strings.Repeat("a.b-", 50)+"c"
		d.Spec = v1.DiagnosisSpec{OperationSet: "set", NodeName: n.Name}
		w.MustCreate(t, d)
		w.Until(t, d, func() bool { return d.Labels[v1.LabelNode] == v1.NodeLabelValue(n.Name) })
		w.Until(t, d, func() bool { return condition(d.Status.Conditions, v1.ConditionAccepted, v1.ReasonNoAgent) })
		w.agent(t, n.Name)
		w.Until(t, d, func() bool { return meta.FindStatusCondition(d.Status.Conditions, v1.ConditionAccepted) == nil })
	})
}

// TestConditions: a condition of each kind refuses what the schema does not, here or on an old server, and names field and value. The
// tests of the controllers have all other rows.
func TestConditions(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		w.run(t)
		old := strings.HasSuffix(t.Name(), "1.18")
		for name, tc := range map[string]struct {
			kind, spec, reason string
			cel                bool
			want               []string
		}{
			"two forms":   {"Operation", "{processor: {path: /processor/x, httpServer: {path: /y}}}", v1.ReasonInvalidSpec, true, []string{"spec.processor", `"path,httpServer"`}},
			"address":     {"Operation", "{processor: {httpServer: {address: 'http://x'}}}", v1.ReasonInvalidSpec, false, []string{"spec.processor.httpServer.address", `"http://x"`}},
			"cycle":       {"OperationSet", "{adjacencyList: [{id: 0, to: [1]}, {id: 1, to: [2], operation: a}, {id: 2, to: [1], operation: a}]}", v1.ReasonInvalidGraph, false, []string{"adjacencyList[1]", "1 -> 2 -> 1"}},
			"two sources": {"Trigger", "{operationSet: s, nodeName: n1, sourceTemplate: {cronTemplate: {schedule: '@daily'}, mountFaultTemplate: {}}}", v1.ReasonInvalidSpec, true, []string{`"cronTemplate,mountFaultTemplate"`}},
			"expression":  {"Trigger", "{operationSet: s, sourceTemplate: {kubernetesEventTemplate: {regexp: {reason: 'a('}}}}", v1.ReasonInvalidSpec, false, []string{"kubernetesEventTemplate.regexp.reason", `"a("`}},
			"nowhere":     {"Diagnosis", "{operationSet: s}", v1.ReasonInvalid, true, []string{"spec.nodeName"}},
			"no node":     {"Diagnosis", "{operationSet: s, nodeName: gone-1}", v1.ReasonNodeNotFound, false, []string{"spec.nodeName", `"gone-1"`}},
		} {
			if tc.cel && !old {
				continue // refused at the door, see test/apitest
			}
			t.Run(name, func(t *testing.T) {
				o := apitest.Objects(t, "{apiVersion: diagnosis.kubediag.org/v1, kind: "+tc.kind+", metadata: {generateName: bad-}, spec: "+tc.spec+"}")[0]
				if tc.kind == "Diagnosis" {
					o.SetNamespace(w.ns)
					o.SetLabels(map[string]string{v1.LabelNode: "elsewhere"}) // by which an agent would see it
				}
				w.MustCreate(t, o)
				message := w.verdict(t, tc.kind, client.ObjectKeyFromObject(o), tc.reason)
				for _, part := range tc.want {
					if !strings.Contains(message, part) {
						t.Errorf("message %q does not contain %q", message, part)
					}
				}
				if tc.kind == "Diagnosis" {
					w.warned(t, o, tc.reason)
					w.Until(t, o, func() bool { _, labelled := o.GetLabels()[v1.LabelNode]; return !labelled })
				}
			})
		}
	})
}

// A set becomes ready when the Operation appears that it misses, and stops being so when the Operation breaks or goes.
func TestOperationComesAndGoes(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		w.run(t)
		name := "op-" + w.ns
		set := &v1.OperationSet{}
		set.GenerateName = "set-"
		set.Spec.AdjacencyList = []v1.Node{{To: []int32{1}}, {ID: 1, Operation: name}}
		w.MustCreate(t, set)
		w.Until(t, set, func() bool { return condition(set.Status.Conditions, v1.ConditionReady, v1.ReasonOperationNotFound) })
		op := &v1.Operation{}
		op.Name = name
		path := "/processor/mountInfoCollector"
		op.Spec.Processor.Path = &path
		w.MustCreate(t, op)
		w.Until(t, set, func() bool { return set.Status.Ready })
		w.Until(t, op, func() bool { return len(op.Status.Conditions) > 0 })
		*op.Spec.Processor.Path = "/processor/nonsense"
		must(t, w.Client.Update(t.Context(), op))
		w.Until(t, set, func() bool {
			return !set.Status.Ready && condition(set.Status.Conditions, v1.ConditionReady, v1.ReasonOperationNotReady) &&
				strings.Contains(meta.FindStatusCondition(set.Status.Conditions, v1.ConditionReady).Message, "nonsense")
		})
		must(t, w.Client.Delete(t.Context(), op))
		w.Until(t, set, func() bool { return condition(set.Status.Conditions, v1.ConditionReady, v1.ReasonOperationNotFound) })
	})
}

// TestLifeOfADiagnosis: it waits until its pod has a node, on which the API server binds the pod, and then for an agent there. While its agent
// is away, it is Unknown, and keeps what the agent wrote. One whose node goes ends.
func TestLifeOfADiagnosis(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		w.run(t)
		node, ref := w.node(t), w.pod(t, "")
		d := w.diagnose(t, v1.DiagnosisSpec{PodReference: ref})
		w.Until(t, d, func() bool {
			return d.Status.Phase == v1.DiagnosisPending && condition(d.Status.Conditions, v1.ConditionAccepted, v1.ReasonPodNotScheduled)
		})
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}}
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}
		must(t, w.Client.SubResource("binding").Create(t.Context(), p, binding))
		w.Until(t, d, func() bool { return d.Labels[v1.LabelNode] == node && d.Spec.NodeName == node })
		w.Until(t, d, func() bool {
			return d.Status.Phase == v1.DiagnosisPending && condition(d.Status.Conditions, v1.ConditionAccepted, v1.ReasonNoAgent)
		})
		if message := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionAccepted).Message; !strings.Contains(message, node) {
			t.Errorf("message = %q", message)
		}

		stop := w.agent(t, node)
		w.accept(t, d)
		stop()
		w.Until(t, d, func() bool { return d.Status.Phase == v1.DiagnosisUnknown })
		c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete)
		if c.Status != metav1.ConditionUnknown || c.Reason != v1.ReasonAgentLost || !strings.Contains(c.Message, node) {
			t.Errorf("condition = %+v", c)
		}
		if d.Status.OperationResults["collector.system.mountinfo"] != "much" || !meta.IsStatusConditionTrue(d.Status.Conditions, v1.ConditionAccepted) {
			t.Errorf("what the agent wrote is gone: %+v", d.Status)
		}
		w.warned(t, d, v1.ReasonAgentLost)
		w.agent(t, node)
		w.Until(t, d, func() bool {
			return d.Status.Phase == v1.DiagnosisRunning && meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete) == nil
		})

		other := w.node(t)
		d = w.diagnose(t, v1.DiagnosisSpec{NodeName: other})
		w.Until(t, d, func() bool { return condition(d.Status.Conditions, v1.ConditionAccepted, v1.ReasonNoAgent) })
		must(t, w.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: other}}))
		w.Until(t, d, func() bool { return condition(d.Status.Conditions, v1.ConditionComplete, v1.ReasonNodeNotFound) })
	})
}

func TestRetention(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	w.options.RetentionInterval = 100 * time.Millisecond
	w.options.DiagnosesPerNode, w.options.DiagnosisMinimumTTL = 2, 0
	node := w.node(t)
	w.agent(t, node)
	var all []*v1.Diagnosis
	for i := range 5 {
		d := w.diagnose(t, v1.DiagnosisSpec{NodeName: node})
		before := d.DeepCopy()
		d.Status.Phase = v1.DiagnosisSucceeded
		end := metav1.NewTime(time.Now().Add(time.Duration(i-10) * time.Minute))
		d.Status.CompletionTime = &end
		if i == 0 {
			d.Status.Phase, d.Status.CompletionTime = v1.DiagnosisRunning, nil
		}
		must(t, w.Client.Status().Patch(t.Context(), d, client.MergeFrom(before)))
		all = append(all, d)
	}
	w.run(t)
	apitest.Eventually(t, func() error {
		for i, kept := range []bool{true, false, false, true, true} {
			err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(all[i]), &v1.Diagnosis{})
			if (err == nil) != kept {
				return errors.Join(fmt.Errorf("diagnosis %d, want it kept: %t", i, kept), err)
			}
		}
		return nil
	})
}

// The Lease of an agent goes when its node is gone for good, and no other does: the one that goes is the last in order.
func TestLeasesOfNodesThatAreGone(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		there := w.node(t)
		lease := func(node string, ago time.Duration, label bool) *coordinationv1.Lease {
			l := &coordinationv1.Lease{}
			l.Namespace, l.Name = w.ns, v1.AgentLeaseName(node)
			if label {
				l.Labels = map[string]string{v1.LabelAgent: v1.NodeLabelValue(node)}
			}
			renewed := metav1.NewMicroTime(time.Now().Add(-ago))
			l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &node, RenewTime: &renewed}
			w.MustCreate(t, l)
			return l
		}
		stay := []*coordinationv1.Lease{lease(there, 2*time.Hour, true), lease("gone-1", time.Minute, true), lease("gone-2", 2*time.Hour, false)}
		gone := lease("zz-gone", 2*time.Hour, true)
		w.run(t)
		apitest.Eventually(t, func() error {
			if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(gone), gone); !apierrors.IsNotFound(err) {
				return fmt.Errorf("lease %s is still there: %w", gone.Name, err)
			}
			return nil
		})
		for _, l := range stay {
			if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(l), l); err != nil {
				t.Errorf("lease %s: %v", l.Name, err)
			}
		}
	})
}
