// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package integrations

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/manifests"
)

// TestKyvernoHasTheExpressions holds that the policy for kyverno has the expressions of the one for the API server.
func TestKyvernoHasTheExpressions(t *testing.T) {
	t.Parallel()
	var policy admissionv1.ValidatingAdmissionPolicy
	for doc, err := range manifests.Documents(readFile(t, "admission.yaml")) {
		must(t, err)
		if policy.Kind != "ValidatingAdmissionPolicy" {
			must(t, yaml.UnmarshalStrict(doc.Text, &policy))
		}
	}
	var kyverno struct {
		Spec struct {
			Rules []struct {
				Validate struct {
					CEL struct {
						Variables   []admissionv1.Variable   `json:"variables"`
						Expressions []admissionv1.Validation `json:"expressions"`
					} `json:"cel"`
				} `json:"validate"`
			} `json:"rules"`
		} `json:"spec"`
	}
	must(t, yaml.Unmarshal(readFile(t, "kyverno.yaml"), &kyverno))
	if len(kyverno.Spec.Rules) != 1 || len(policy.Spec.Validations) != 2 {
		t.Fatalf("%d rules of kyverno, %d of the API server", len(kyverno.Spec.Rules), len(policy.Spec.Validations))
	}
	cel := kyverno.Spec.Rules[0].Validate.CEL
	if diff := cmp.Diff(policy.Spec.Variables, cel.Variables); diff != "" {
		t.Errorf("variables (-API server +kyverno):\n%s", diff)
	}
	if diff := cmp.Diff(policy.Spec.Validations, cel.Expressions); diff != "" {
		t.Errorf("expressions (-API server +kyverno):\n%s", diff)
	}
}
