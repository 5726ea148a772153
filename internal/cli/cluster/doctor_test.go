// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/config/policy"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/manifests"
)

// TestPolicyAdvice: the line installs the missing policies and no more, in the way in which kubediag was installed.
func TestPolicyAdvice(t *testing.T) {
	t.Parallel()
	all, err := manifests.Read[admissionv1.ValidatingAdmissionPolicy](policy.Files, "ValidatingAdmissionPolicy")
	if err != nil || len(all) < 2 {
		t.Fatalf("%d policies, %v", len(all), err)
	}
	const release = ", or -f policies.yaml of a release"
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
		if got := (&installationCheck{}).applyPolicies([]string{p.Name}); got != "kubectl apply -f config/policy/agent-node.yaml"+release && got != "kubectl apply -f config/policy/diagnosis-rights.yaml"+release {
			t.Errorf("%s: %q", p.Name, got)
		}
	}
	helm := helmReleaseOf(&metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"},
		Annotations: map[string]string{"meta.helm.sh/release-name": "kd", "meta.helm.sh/release-namespace": "ops"}})
	for name, tc := range map[string]struct {
		helm  *helmRelease
		names []string
		want  string
	}{
		"all":        {nil, names, "kubectl apply -f config/policy/agent-node.yaml -f config/policy/diagnosis-rights.yaml" + release},
		"one":        {nil, []string{"kubediag-agent-node"}, "kubectl apply -f config/policy/agent-node.yaml" + release},
		"Helm":       {helm, names, "helm upgrade kd charts/kubediag --namespace ops --reset-then-reuse-values --set policies.agentNode=true,policies.diagnosisRights=true"},
		"Helm, one":  {helm, []string{"kubediag-trigger-rights"}, "helm upgrade kd charts/kubediag --namespace ops --reset-then-reuse-values --set policies.diagnosisRights=true"},
		"not Helm's": {helmReleaseOf(&metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/managed-by": "flux"}}), names[:1], "kubectl apply -f config/policy/agent-node.yaml" + release},
	} {
		if got := (&installationCheck{helm: tc.helm}).applyPolicies(tc.names); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if !slices.Contains(names, "kubediag-agent-node") {
		t.Errorf("policies %q", names)
	}
}

// TestDoctorWithoutInstallation: on a cluster without kubediag, doctor says that first, and checks no more.
func TestDoctorWithoutInstallation(t *testing.T) {
	t.Parallel()
	var asked []string
	c := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		if w.Header().Set("Content-Type", "application/json"); r.URL.Path == "/version" {
			fmt.Fprint(w, `{"major":"1","minor":"36","gitVersion":"v1.36.3"}`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}), "default")
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetContext(t.Context())
	err := (&installationCheck{api: c, home: defaultHome, out: new(verb.Format)}).runDoctor(cmd)
	const want = "FAIL  kubediag is not installed: the API server has none of its 7 CustomResourceDefinitions\n" +
		"      -> kubectl apply -k config/default, or -f install.yaml of a release, or helm install: see docs/install.md\nOK    API server v1.36.3\n"
	if out.String() != want || !errors.Is(err, verb.ErrFaults) {
		t.Errorf("%v, got\n%s\nwant\n%s", err, &out, want)
	}
	for _, path := range asked {
		if path != "/version" && !strings.Contains(path, "/customresourcedefinitions/") {
			t.Errorf("asked for %s", path)
		}
	}
}
