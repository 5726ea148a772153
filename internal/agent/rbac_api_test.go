// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"kubediag.org/kubediag/test/apitest"
)

// listRights asks the API server for all that a user may do to objects in a namespace, but for what every user may.
func listRights(t *testing.T, config *rest.Config, namespace string) []string {
	t.Helper()
	review, err := apitest.Clientset(t, config).AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}, metav1.CreateOptions{})
	must(t, err)
	var all []string
	for _, rule := range review.Status.ResourceRules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				if strings.HasPrefix(resource, "self") {
					continue
				}
				for _, verb := range rule.Verbs {
					right := verb + " " + resource + "." + group
					if len(rule.ResourceNames) > 0 {
						right += " of some names"
					}
					all = append(all, right)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// checkRights waits until these are all, as the API server's own view of its roles lags behind them.
func checkRights(t *testing.T, config *rest.Config, namespace string, want []string) {
	t.Helper()
	slices.Sort(want)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		diff := cmp.Diff(want, listRights(t, config, namespace))
		if diff == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("rights in %q (-want +got):\n%s", namespace, diff)
		}
	}
}

// ofAllAccounts lists the rights that the API server gives to every ServiceAccount, from 1.37 on.
func ofAllAccounts() []string {
	if !apitest.Since("1.37.0") {
		return nil
	}
	const kind = "clustertrustbundles.certificates.k8s.io"
	return []string{"get " + kind, "list " + kind, "watch " + kind}
}

// TestAgentHasTheseRightsAndNoOthers compares all of them, so that no right slips in.
func TestAgentHasTheseRightsAndNoOthers(t *testing.T) {
	t.Parallel()
	config := impersonate(installDefault(t).Config, serviceAccount("kubediag-agent"))
	const group = "diagnosis.kubediag.org"
	everywhere := []string{
		"create events.", "patch events.",
		"get pods.", "list pods.", "watch pods.", "get persistentvolumeclaims.",
		"create mountfaults." + group, "delete mountfaults." + group, "get mountfaults." + group, "list mountfaults." + group,
		"patch mountfaults." + group, "get recoveryapprovals." + group, "patch recoveryapprovals/status." + group,
		"get diagnoses." + group, "list diagnoses." + group, "watch diagnoses." + group, "patch diagnoses/status." + group,
		"get operations." + group, "list operations." + group, "watch operations." + group,
		"get operationsets." + group, "list operationsets." + group, "watch operationsets." + group,
		"get recoverypolicies." + group, "list recoverypolicies." + group, "watch recoverypolicies." + group,
		"get namespaces.", "get nodes.", // by name, for the labels that policies select by
		"get persistentvolumes.", "get csidrivers.storage.k8s.io", "get csinodes.storage.k8s.io", "get volumeattachments.storage.k8s.io", // by name
		"get validatingadmissionpolicies.admissionregistration.k8s.io of some names",
		"get validatingadmissionpolicybindings.admissionregistration.k8s.io of some names",
	}
	for namespace, more := range map[string][]string{
		"default": nil,
		"kubediag": {
			"create leases.coordination.k8s.io", "patch leases.coordination.k8s.io",
			"create diagnoses." + group, // records of what the sentinel repaired
		},
	} {
		checkRights(t, config, namespace, slices.Concat(everywhere, ofAllAccounts(), more))
	}
}

// TestManagerHasTheseRightsAndNoOthers does the same for the manager.
func TestManagerHasTheseRightsAndNoOthers(t *testing.T) {
	t.Parallel()
	config := impersonate(installDefault(t).Config, serviceAccount("kubediag-manager"))
	const group = "diagnosis.kubediag.org"
	everywhere := []string{
		"create events.", "patch events.", "list events.", "watch events.", "get nodes.", "list nodes.", "get pods.",
		"get namespaces.", // the labels that a mountFaultTemplate selects by
		"get validatingadmissionpolicies.admissionregistration.k8s.io of some names",
		"get validatingadmissionpolicybindings.admissionregistration.k8s.io of some names",
		"get diagnoses." + group, "list diagnoses." + group, "watch diagnoses." + group, "patch diagnoses." + group, "delete diagnoses." + group,
		"patch diagnoses/status." + group, "delete mountfaults." + group, "get mountfaults." + group,
		"list mountfaults." + group, "watch mountfaults." + group,
		"delete recoveryapprovals." + group, "patch recoveryapprovals." + group,
	}
	for _, kind := range []string{"operations", "operationsets", "recoveryapprovals", "recoverypolicies", "triggers"} {
		everywhere = append(everywhere, "get "+kind+"."+group, "list "+kind+"."+group, "watch "+kind+"."+group, "patch "+kind+"/status."+group)
	}
	for _, kind := range []string{"operations", "operationsets"} { // those that ship, see package shipped
		everywhere = append(everywhere, "create "+kind+"."+group, "patch "+kind+"."+group+" of some names")
	}
	for namespace, more := range map[string][]string{
		"default": nil, "kube-system": nil, "kube-node-lease": nil,
		"kubediag": {
			"create leases.coordination.k8s.io", "get leases.coordination.k8s.io", "update leases.coordination.k8s.io",
			"list leases.coordination.k8s.io", "delete leases.coordination.k8s.io", // of agents whose nodes are gone
			"create diagnoses." + group, // of Triggers and RecoveryPolicies
		},
	} {
		checkRights(t, config, namespace, slices.Concat(everywhere, ofAllAccounts(), more))
	}
}

// TestNobodyReadsSecrets tries it, rather than read the rules.
func TestNobodyReadsSecrets(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	for _, name := range []string{"kubediag-agent", "kubediag-manager"} {
		for _, namespace := range []string{"", "kubediag", "default"} {
			set := apitest.Clientset(t, impersonate(env.Config, serviceAccount(name)))
			if _, err := set.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("%s lists Secrets in %q: %v", name, namespace, err)
			}
			if _, err := set.CoreV1().Secrets("kubediag").Get(t.Context(), "s", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("%s gets a Secret in %q: %v", name, namespace, err)
			}
		}
		set := apitest.Clientset(t, impersonate(env.Config, serviceAccount(name)))
		if err := set.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s deletes pods: %v", name, err)
		}
	}
}

// TestRolesAreNarrow holds for every role of the manifests that it names what it gives, and that who may edit a
// namespace is not thereby allowed to run operations on nodes.
func TestRolesAreNarrow(t *testing.T) {
	t.Parallel()
	roles, err := apitest.Clientset(t, installDefault(t).Config).RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	seen := 0
	for _, role := range roles.Items {
		if !strings.HasPrefix(role.Name, "kubediag-") {
			continue
		}
		seen++
		for _, rule := range role.Rules {
			checkRule(t, role, rule)
		}
	}
	if seen != 6 {
		t.Errorf("%d ClusterRoles", seen)
	}
}

func checkRule(t *testing.T, role rbacv1.ClusterRole, rule rbacv1.PolicyRule) {
	t.Helper()
	for _, list := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs, rule.NonResourceURLs} {
		if slices.Contains(list, "*") || slices.Contains(list, "secrets") {
			t.Errorf("%s: %+v", role.Name, rule)
		}
	}
	for label := range role.Labels {
		if !strings.Contains(label, "/aggregate-to-") {
			continue
		}
		for _, verb := range rule.Verbs {
			if !slices.Contains([]string{"get", "list", "watch"}, verb) || !strings.HasSuffix(label, "-view") {
				t.Errorf("%s gives %q by %q", role.Name, verb, label)
			}
		}
	}
}
