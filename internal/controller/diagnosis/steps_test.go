// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/policy"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/manifests"
)

// rightsInForce are the policy that asks for the rights of the author of a Diagnosis, and its binding.
func rightsInForce(t *testing.T) (all []client.Object) {
	t.Helper()
	policies, err := manifests.Read[admissionv1.ValidatingAdmissionPolicy](policy.Files, "ValidatingAdmissionPolicy")
	bindings, errBindings := manifests.Read[admissionv1.ValidatingAdmissionPolicyBinding](policy.Files, "ValidatingAdmissionPolicyBinding")
	must(t, errors.Join(err, errBindings))
	const name = "kubediag-diagnosis-rights"
	for i := range policies {
		if policies[i].Name == name {
			all = append(all, &policies[i])
		}
	}
	for i := range bindings {
		if bindings[i].Name == name {
			all = append(all, &bindings[i])
		}
	}
	return all
}

// TestPodOfAnotherNamespace is refused if no policy asks for rights, also if its author has set the label of the manager.
func TestPodOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	ours := diagnosisOn("node-1", webPod)
	ours.Labels = map[string]string{v1.LabelNode: "node-1"}
	for name, d := range map[string]*v1.Diagnosis{"new": diagnosisOn("", webPod), "with the label": ours} {
		w := newDiagnosisWorld(t, d, podOnNode("node-1"), newNode("node-1"))
		must(t, w.Client.Delete(t.Context(), rightsInForce(t)[0]))
		w.reconcileOnce(t)
		got := w.diagnosis(t)
		c := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionComplete)
		if got.Status.Phase != v1.DiagnosisFailed || c == nil || c.Reason != v1.ReasonPodInOtherNamespace ||
			!strings.Contains(c.Message, "Create the Diagnosis in namespace apps") {
			t.Errorf("%s: %+v", name, got.Status)
		}
	}
}

// TestOrigin: the manager sets the label of the origin, and replaces any value that it had.
func TestOrigin(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		labels map[string]string
		mode   v1.DiagnosisMode
		set    string
		want   string
	}{
		"policy":              {map[string]string{v1.LabelOrigin: v1.OriginPolicy}, v1.ModeApprove, "set", v1.OriginPolicy},
		"policy that plans":   {map[string]string{v1.LabelOrigin: v1.OriginPolicy}, v1.ModePlan, "set", v1.OriginPolicy},
		"policy that evicts":  {map[string]string{v1.LabelOrigin: v1.OriginPolicy}, v1.ModeRecover, v1.EvictOperationSet, v1.OriginPolicy},
		"policy that repairs": {map[string]string{v1.LabelOrigin: v1.OriginPolicy}, v1.ModeRecover, "set", v1.OriginPerson},
		"trigger":             {map[string]string{v1.LabelOrigin: v1.OriginTrigger, v1.LabelTrigger: "t"}, "", "set", v1.OriginTrigger},
		"sentinel":            {map[string]string{v1.LabelOrigin: v1.OriginSentinel}, "", "set", v1.OriginPerson},
		"nothing":             {nil, "", "set", v1.OriginPerson},
	} {
		d := diagnosisOn("node-1", nil)
		d.Labels, d.Spec.Mode, d.Spec.OperationSet = tc.labels, tc.mode, tc.set
		w := newDiagnosisWorld(t, d, newNode("node-1"))
		w.reconcileOnce(t)
		if got := w.diagnosis(t).Labels[v1.LabelOrigin]; got != tc.want {
			t.Errorf("%s: origin %q, want %q", name, got, tc.want)
		}
	}
}

// TestLongestEvent has the manager refuse a node whose name is as long as it can be.
func TestLongestEvent(t *testing.T) {
	t.Parallel()
	w := newDiagnosisWorld(t, diagnosisOn(strings.Repeat("n", 253), nil))
	w.reconcileOnce(t)
	e := w.nextEvent(t)
	_, message, _ := strings.Cut(strings.TrimPrefix(e, "Warning "), " ")
	if n := utf8.RuneCountInString(message); n > kubeclient.MaxEventCharacters || !strings.HasPrefix(message, "spec.nodeName: ") ||
		!strings.HasSuffix(message, "… See: kubectl get diag -n team d -o yaml") {
		t.Errorf("%d characters: %q", n, message)
	}
}
