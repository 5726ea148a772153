// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/config/policy"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/manifests"
)

// policyFiles are the files of config/policy with policies, and the value of the chart that installs each. The directory has other
// files, which not every cluster wants.
var policyFiles = []struct{ file, value string }{
	{"agent-node.yaml", "policies.agentNode"}, {"diagnosis-rights.yaml", "policies.diagnosisRights"},
}

// helmRelease is a release of the chart.
type helmRelease struct{ namespace, name string }

// helmReleaseOf is the release that an object belongs to; nil if Helm has not installed it.
func helmReleaseOf(o *metav1.ObjectMeta) *helmRelease {
	if o.Labels["app.kubernetes.io/managed-by"] != "Helm" {
		return nil
	}
	return &helmRelease{o.Annotations["meta.helm.sh/release-namespace"], o.Annotations["meta.helm.sh/release-name"]}
}

// findRelease looks for Helm's label at the manager, for a cluster whose CustomResourceDefinitions were installed by other means.
func (k *installationCheck) findRelease(ctx context.Context) {
	var list appsv1.DeploymentList
	if k.helm != nil || k.api.server.List(ctx, &list, ctrlclient.InNamespace(k.home), ctrlclient.MatchingLabels{componentLabel: "manager"}) != nil {
		return
	}
	for i := range list.Items {
		if k.helm = helmReleaseOf(&list.Items[i].ObjectMeta); k.helm != nil {
			return
		}
	}
}

// applyPolicies is the line that installs policies: their files, or the values of the chart.
func (k *installationCheck) applyPolicies(names []string) string {
	var files, values []string
	for _, f := range policyFiles {
		text, err := policy.Files.ReadFile(f.file)
		if err != nil {
			continue
		}
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(string(text), "\n  name: "+name+"\n") }) {
			files, values = append(files, "-f config/policy/"+f.file), append(values, f.value+"=true")
		}
	}
	if k.helm == nil {
		return "kubectl apply " + strings.Join(files, " ") + ", or -f policies.yaml of a release"
	}
	return fmt.Sprintf("helm upgrade %s charts/kubediag --namespace %s --reset-then-reuse-values --set %s", fault.Quote(k.helm.name),
		fault.Quote(k.helm.namespace), strings.Join(values, ","))
}

// checkPolicies checks that the policies that ship are there, current and bound.
func (k *installationCheck) checkPolicies(ctx context.Context) (results []checkResult) {
	wanted, err := manifests.Read[admissionv1.ValidatingAdmissionPolicy](policy.Files, "ValidatingAdmissionPolicy")
	if err != nil {
		return []checkResult{uncheckedResult("policies are", err)}
	}
	var bound admissionv1.ValidatingAdmissionPolicyBindingList
	err = k.api.server.List(ctx, &bound)
	if errors.Is(err, errNotServed) {
		return []checkResult{warnResult("update to Kubernetes 1.30 or later, or let only users who may repair any node create Diagnoses",
			"no policies: this API server has no ValidatingAdmissionPolicies, as 1.%d has", policyServerMinor)}
	}
	if err != nil {
		return []checkResult{uncheckedResult("policies are", err)}
	}
	k.findRelease(ctx)
	var inForce, missing, changed, unbound, unseen []string
	var unseenErr error
	for _, want := range wanted {
		var have admissionv1.ValidatingAdmissionPolicy
		err := k.api.server.Get(ctx, ctrlclient.ObjectKey{Name: want.Name}, &have)
		switch {
		case errors.Is(err, errMissing):
			missing = append(missing, want.Name)
		case err != nil:
			unseen, unseenErr = append(unseen, want.Name), cmp.Or(unseenErr, err) // the reason is mostly the same
		case !policy.Same(want, have):
			changed = append(changed, want.Name)
		case !slices.ContainsFunc(bound.Items, func(b admissionv1.ValidatingAdmissionPolicyBinding) bool { return b.Spec.PolicyName == want.Name }):
			unbound = append(unbound, want.Name)
		default:
			inForce = append(inForce, want.Name)
		}
	}
	if len(unseen) > 0 {
		results = append(results, uncheckedResult(verb.Plural(len(unseen), "policy is", "policies are"), fmt.Errorf("%s: %w", joinNames(unseen), unseenErr)))
	}
	if len(inForce) > 0 {
		results = append(results, okResult("policies in force: %s", strings.Join(inForce, ", ")))
	}
	for _, group := range []struct {
		names        []string
		advice, text string
	}{
		{missing, "recommended: ", "not installed"}, {changed, "if you did not change it: ", "not of this release"},
		{unbound, "", "in force nowhere, because no binding names it"},
	} {
		if len(group.names) > 0 {
			results = append(results, warnResult(group.advice+k.applyPolicies(group.names), "%s %s: %s",
				verb.Plural(len(group.names), "policy is", "policies are"), group.text, joinNames(group.names)))
		}
	}
	return results
}
