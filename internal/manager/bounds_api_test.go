// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// largeDiagnosis has parameters with so many characters.
func (w *world) largeDiagnosis(name, node string, characters int) *v1.Diagnosis {
	d := &v1.Diagnosis{}
	d.Namespace, d.Name = w.ns, name
	d.Spec = v1.DiagnosisSpec{OperationSet: "set", NodeName: node, Parameters: map[string]string{
		"a": strings.Repeat("é", characters/2-1), "b": strings.Repeat("x", characters-characters/2-1),
	}}
	return d
}

// withoutBound removes the rules of whole Diagnoses from the CustomResourceDefinition while fn runs.
func (w *world) withoutBound(t *testing.T, fn func()) {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	must(t, w.Client.Get(t.Context(), types.NamespacedName{Name: "diagnoses." + v1.Group}, crd))
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	path := []string{"schema", "openAPIV3Schema", "x-kubernetes-validations"}
	rules, _, _ := unstructured.NestedSlice(versions[0].(map[string]any), path...)
	put := func(rules []any) {
		text, err := json.Marshal(rules)
		must(t, err)
		patch := fmt.Sprintf(`[{"op":"add","path":"/spec/versions/0/%s","value":%s}]`, strings.Join(path, "/"), text)
		must(t, w.Client.Patch(t.Context(), crd, client.RawPatch(types.JSONPatchType, []byte(patch))))
	}
	if len(rules) != 1 {
		t.Fatalf("rules of whole Diagnoses: %v", rules)
	}
	put([]any{})
	defer put(rules)
	fn()
}

// TestParametersAreBounded: a Diagnosis with more than 65,536 characters of parameters is refused by a server that knows rules, and else
// ended by the manager. One that is older than the bound can be ended, by the manager or by its agent, and deleted.
func TestParametersAreBounded(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		rules := w.Rules
		node := w.node(t)
		tooLong := func() error {
			return w.Client.Create(t.Context(), w.largeDiagnosis("new", node, 65537), client.DryRunAll)
		}
		if err := w.Client.Create(t.Context(), w.largeDiagnosis("fits", node, 65536), client.DryRunAll); err != nil {
			t.Errorf("65,536 characters: %v", err)
		}
		pending, running := w.largeDiagnosis("pending", node, 300000), w.largeDiagnosis("running", node, 300000)
		store := func() {
			for _, d := range []*v1.Diagnosis{pending, running} {
				apitest.Eventually(t, func() error { return client.IgnoreAlreadyExists(w.Client.Create(t.Context(), d.DeepCopy())) })
			}
		}
		if rules {
			if err := tooLong(); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "must not have more than 65536 characters in all") {
				t.Errorf("65,537 characters: %v", err)
			}
			w.withoutBound(t, store)
			apitest.Eventually(t, func() error { // until the rule is in force
				if err := tooLong(); !apierrors.IsInvalid(err) {
					return errors.Join(errors.New("it is not refused"), err)
				}
				return nil
			})
		} else {
			store()
		}
		w.accept(t, running)
		w.run(t)
		w.Until(t, pending, func() bool { return condition(pending.Status.Conditions, v1.ConditionComplete, v1.ReasonInvalid) })
		c := meta.FindStatusCondition(pending.Status.Conditions, v1.ConditionComplete)
		if want := `spec.parameters: Invalid value: "300000 characters": must not have more than 65536 characters in all`; c.Message != want {
			t.Errorf("message %q, want %q", c.Message, want)
		}
		w.Until(t, running, func() bool { return running.Labels[v1.LabelNode] == node }) // the manager can still write it
		end := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded","summary":"done"}}`))
		if err := w.Client.Status().Patch(t.Context(), running, end); err != nil {
			t.Errorf("its agent cannot end it: %v", err)
		}
		for _, d := range []*v1.Diagnosis{pending, running} {
			if err := w.Client.Delete(t.Context(), d); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestLaterDiagnosesWaitForAPlace: of 70 Diagnoses of a namespace, 64 are bound. The others are when those have ended. Their author gains nothing
// from the label of the manager.
func TestLaterDiagnosesWaitForAPlace(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	ns := w.Namespace(t)
	w.run(t)
	node := w.node(t)
	w.agent(t, node)
	for i := range 70 {
		d := &v1.Diagnosis{Spec: v1.DiagnosisSpec{NodeName: node}}
		d.Namespace, d.Name = ns, fmt.Sprint("d-", i)
		if i >= 50 {
			d.Labels = map[string]string{v1.LabelNode: node}
		}
		must(t, w.Client.Create(t.Context(), d))
	}
	list := &v1.DiagnosisList{}
	counts := func() (bound, waiting []*v1.Diagnosis) {
		must(t, w.Client.List(t.Context(), list, client.InNamespace(ns)))
		for i := range list.Items {
			switch d := &list.Items[i]; {
			case d.Labels[v1.LabelNode] == node:
				bound = append(bound, d)
			case condition(d.Status.Conditions, v1.ConditionAccepted, v1.ReasonNoPlace):
				waiting = append(waiting, d)
			}
		}
		return bound, waiting
	}
	apitest.Eventually(t, func() error {
		if bound, waiting := counts(); len(bound) != 64 || len(waiting) != 6 {
			return fmt.Errorf("%d bound, %d wait", len(bound), len(waiting))
		}
		return nil
	})
	bound, _ := counts()
	for _, d := range bound[:10] {
		w.accept(t, d)
		end := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`))
		must(t, w.Client.Status().Patch(t.Context(), d, end))
	}
	apitest.Eventually(t, func() error {
		if bound, waiting := counts(); len(bound) != 70 || len(waiting) != 0 {
			return fmt.Errorf("%d bound, %d wait", len(bound), len(waiting))
		}
		return nil
	})
}
