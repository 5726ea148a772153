// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// crowd are Diagnoses of a namespace that are bound to a node.
func crowd(namespace, node string, n int, change func(*v1.Diagnosis)) (all []client.Object) {
	for i := range n {
		d := boundTo(node, v1.DiagnosisRunning)
		d.Namespace, d.Name = namespace, fmt.Sprint(namespace, "-", node, "-", i)
		d.UID = types.UID(d.Name)
		if change != nil {
			change(d)
		}
		all = append(all, d)
	}
	return all
}

// withPlace is a Diagnosis that the manager has bound, and that no agent has begun.
func withPlace(d *v1.Diagnosis) {
	d.Status = v1.DiagnosisStatus{Conditions: []metav1.Condition{{Type: v1.ConditionBound, Status: metav1.ConditionTrue, Reason: v1.ReasonPlaceFound}}}
}

// TestPlaces: a Diagnosis is bound if there is a place in its namespace and on its node, and else waits for one.
func TestPlaces(t *testing.T) {
	t.Parallel()
	ofPod := func(namespace string) func(*v1.Diagnosis) {
		return func(d *v1.Diagnosis) { d.Spec.PodReference = &v1.PodReference{Namespace: namespace, Name: "p"} }
	}
	full := []client.Object(nil)
	for i := range 4 {
		full = append(full, crowd(fmt.Sprint("other", i), "node-1", 64, nil)...)
	}
	full = append(full, crowd("team", "node-1", 1, nil)...) // so that its namespace has a place already
	own := diagnosisOn("node-1", webPod)
	own.Namespace = "kubediag"
	labelled := func(d *v1.Diagnosis) { d.Status = v1.DiagnosisStatus{} } // by its author
	for name, tc := range map[string]struct {
		diagnosis *v1.Diagnosis
		others    []client.Object
		waits     string // for this
	}{
		"one is free":              {diagnosisOn("node-1", nil), crowd("team", "node-2", 63, nil), ""},
		"namespace":                {diagnosisOn("node-1", nil), crowd("team", "node-2", 64, nil), "64 Diagnoses of namespace team have not ended"},
		"another namespace":        {diagnosisOn("node-1", nil), crowd("other", "node-2", 200, nil), ""},
		"node":                     {diagnosisOn("node-1", nil), full, "257 Diagnoses of node node-1 have not ended, and namespace team has its share"},
		"node of a pod":            {diagnosisOn("", webPod), full, "257 Diagnoses of node node-1 have not ended"},
		"node, the first":          {diagnosisOn("node-1", nil), full[:256], ""},
		"node, of one that labels": {diagnosisOn("node-1", nil), crowd("other", "node-1", 256, labelled), ""},
		"another node":             {diagnosisOn("node-2", nil), full, ""},
		"ended":                    {diagnosisOn("node-1", nil), crowd("team", "node-1", 300, func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisFailed }), ""},
		"records":                  {diagnosisOn("node-1", nil), crowd("team", "node-1", 300, func(d *v1.Diagnosis) { d.Spec.Mode = v1.ModeRecord }), ""},
		"unbound":                  {diagnosisOn("node-1", nil), crowd("team", "node-1", 300, func(d *v1.Diagnosis) { d.Labels, d.Status = nil, v1.DiagnosisStatus{} }), ""},
		"that lost their label":    {diagnosisOn("node-1", nil), crowd("team", "node-1", 64, func(d *v1.Diagnosis) { d.Labels = nil }), "64 Diagnoses of namespace team"},
		"not begun yet":            {diagnosisOn("node-1", nil), crowd("team", "node-1", 64, withPlace), "64 Diagnoses of namespace team"},
		"labelled by their author": {diagnosisOn("node-1", nil), crowd("team", "node-1", 300, labelled), ""},
		"policies, of the tenant":  {own, crowd("kubediag", "node-2", 64, ofPod("apps")), "64 Diagnoses of namespace apps have not ended"},
		"plans of the tenant":      {own, crowd("apps", "node-1", 64, nil), ""},
		"policies, of others":      {own, crowd("kubediag", "node-2", 200, ofPod("other")), ""},
		"Triggers, of nodes":       {own, crowd("kubediag", "node-2", 200, nil), ""},
		"taken, but without label": {func() *v1.Diagnosis { d := boundTo("node-1", v1.DiagnosisRunning); d.Labels = nil; return d }(), full, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newDiagnosisWorld(t, append(slices.Clip(tc.others), tc.diagnosis, podOnNode("node-1"), newNode("node-1"), newNode("node-2"))...)
			d := &v1.Diagnosis{}
			key := client.ObjectKeyFromObject(tc.diagnosis)
			look := func() time.Duration {
				result, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
				must(t, err)
				must(t, w.Client.Get(t.Context(), key, d))
				return result.RequeueAfter
			}
			again := look()
			condition := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionAccepted)
			if bound := isBound(d); bound != (tc.waits == "") {
				t.Fatalf("bound: %t, %+v", bound, condition)
			}
			if tc.waits == "" {
				return
			}
			if d.Status.Phase != v1.DiagnosisPending || again <= 0 || again > maxWait || condition.Reason != v1.ReasonNoPlace ||
				!strings.HasPrefix(condition.Message, tc.waits) || d.Spec.NodeName != tc.diagnosis.Spec.NodeName {
				t.Fatalf("again after %s: %+v, %+v", again, d.Spec, d.Status)
			}
			if look(); isBound(d) {
				t.Fatal("bound at the second look")
			}
			last := tc.others[len(tc.others)-1].(*v1.Diagnosis).DeepCopy()
			last.Status.Phase = v1.DiagnosisSucceeded
			must(t, w.Client.Status().Update(t.Context(), last))
			if look(); !isBound(d) {
				t.Errorf("a place is free: %+v", d.Status)
			}
		})
	}
}

// TestOwnLabelTakesNoPlace: the author of a Diagnosis has written the label of the manager. It is removed if the namespace has no place left.
// The Diagnosis waits like others, and no agent begins it until the manager has given it a place.
func TestOwnLabelTakesNoPlace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		others []client.Object
		stays  bool
	}{
		"a place is left":                {crowd("team", "node-2", 63, nil), true},
		"of those that wrote it, too":    {crowd("team", "node-2", 64, func(d *v1.Diagnosis) { d.Status = v1.DiagnosisStatus{} }), true},
		"of those that run":              {crowd("team", "node-2", 64, nil), false},
		"of those that have their place": {crowd("team", "node-2", 64, withPlace), false},
		"others fill the node": {append(append(append(append(crowd("a", "node-1", 64, nil), crowd("b", "node-1", 64, nil)...),
			crowd("c", "node-1", 64, nil)...), crowd("e", "node-1", 64, nil)...), crowd("team", "node-1", 1, nil)...), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := boundTo("node-1", "")
			w := newDiagnosisWorld(t, append(tc.others, d, newNode("node-1"))...)
			w.setLease(t, "node-1", "node-1", w.clock.Now())
			w.reconcileOnce(t)
			if got := w.diagnosis(t); isBound(got) != tc.stays || got.HasPlace() != tc.stays || waitsForPlace(got) {
				t.Fatalf("labels %v, %+v", got.Labels, got.Status)
			}
			if tc.stays {
				return
			}
			w.reconcileOnce(t)
			waiting := w.diagnosis(t)
			if isBound(waiting) || waiting.HasPlace() || !waitsForPlace(waiting) {
				t.Fatalf("labels %v, %+v", waiting.Labels, waiting.Status)
			}
			// Its author writes the label again, and an agent that sees it leaves it alone.
			again := waiting.DeepCopy()
			again.Labels = map[string]string{v1.LabelNode: "node-1"}
			if !managerPredicate().Update(event.UpdateEvent{ObjectOld: waiting, ObjectNew: again}) {
				t.Error("the manager does not look at a label that it has not written")
			}
			must(t, w.Client.Update(t.Context(), again))
			w.reconcileOnce(t)
			if got := w.diagnosis(t); isBound(got) || !waitsForPlace(got) {
				t.Fatalf("labels %v, %+v", got.Labels, got.Status)
			}
			last := tc.others[len(tc.others)-1].(*v1.Diagnosis).DeepCopy()
			last.Status.Phase = v1.DiagnosisSucceeded
			must(t, w.Client.Status().Update(t.Context(), last))
			w.reconcileOnce(t)
			if got := w.diagnosis(t); !isBound(got) || !got.HasPlace() || waitsForPlace(got) {
				t.Fatalf("a place is free: labels %v, %+v", got.Labels, got.Status)
			}
		})
	}
}

// TestPlacesAreTakenOnce: places that the cache does not show as taken yet are not given twice.
func TestPlacesAreTakenOnce(t *testing.T) {
	t.Parallel()
	w := newDiagnosisWorld(t, crowd("team", "node-1", 62, nil)...)
	for i := range 4 {
		d := diagnosisOn("node-1", nil)
		d.Name = fmt.Sprint("new-", i)
		d.UID = types.UID(d.Name)
		must(t, w.Client.Create(t.Context(), d.DeepCopy()))
		if why, err := w.findPlace(t.Context(), d, true); err != nil || (why == "") != (i < 2) {
			t.Errorf("%d: %q, %v", i, why, err)
		}
		if again, err := w.findPlace(t.Context(), d, true); err != nil || (again == "") != (i < 2) {
			t.Errorf("%d, once more: %q, %v", i, again, err)
		}
	}
	gone := diagnosisOn("node-1", nil)
	gone.Name = "new-0"
	must(t, w.Client.Delete(t.Context(), gone))
	if why, err := w.findPlace(t.Context(), diagnosisOn("node-1", nil), true); err != nil || why != "" {
		t.Errorf("a Diagnosis that is gone keeps its place: %q, %v", why, err)
	}
}

// TestWrongLabelIsCorrected: an agent sees no Diagnosis that ended without it, whatever its creator wrote, and none of another node.
func TestWrongLabelIsCorrected(t *testing.T) {
	t.Parallel()
	refused := boundTo("node-2", v1.DiagnosisFailed)
	refused.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAccepted, Status: "False", Reason: v1.ReasonPodOnOtherNode}}
	elsewhere := boundTo("node-1", v1.DiagnosisSucceeded)
	elsewhere.Labels[v1.LabelNode] = "node-2"
	record := boundTo("node-2", v1.DiagnosisSucceeded)
	record.Spec.Mode, record.Spec.NodeName, record.Status.Conditions = v1.ModeRecord, "node-1", nil
	right := boundTo("node-1", v1.DiagnosisSucceeded)
	for name, tc := range map[string]struct {
		diagnosis *v1.Diagnosis
		want      string
	}{"refused": {refused, ""}, "of another node": {elsewhere, "node-1"}, "record": {record, "node-1"}, "right": {right, "node-1"}} {
		w := newDiagnosisWorld(t, tc.diagnosis)
		_, wrong := wrongLabel(tc.diagnosis)
		for kind, seen := range map[string]bool{
			"create": managerPredicate().Create(event.CreateEvent{Object: tc.diagnosis}),
			"update": managerPredicate().Update(event.UpdateEvent{ObjectOld: right, ObjectNew: tc.diagnosis}),
		} {
			if seen != wrong && tc.diagnosis != record {
				t.Errorf("%s: the manager looks at it after %s: %t", name, kind, seen)
			}
		}
		if again := w.reconcileOnce(t); again != 0 {
			t.Errorf("%s: again after %s", name, again)
		}
		if got := w.diagnosis(t); got.Labels[v1.LabelNode] != tc.want || got.Status.Phase != tc.diagnosis.Status.Phase {
			t.Errorf("%s: label %q, want %q", name, got.Labels[v1.LabelNode], tc.want)
		}
	}
	w := newDiagnosisWorld(t, func() *v1.Diagnosis {
		d := diagnosisOn("node-2", webPod)
		d.Labels = map[string]string{v1.LabelNode: "n3"}
		return d
	}(), podOnNode("node-1"))
	w.reconcileOnce(t)
	w.reconcileOnce(t)
	if d := w.diagnosis(t); !d.Ended() || d.Labels[v1.LabelNode] != "" {
		t.Errorf("refused, labels %v: %+v", d.Labels, d.Status)
	}
}

var must = kerneltest.Must
