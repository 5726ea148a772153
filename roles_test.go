// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// evictor is the one file with a role that allows more of a pod than to read it: to create an eviction.
const evictor = "config/components/eviction/evictor.yaml"

// rbacObject is a Role, a ClusterRole, or a binding of one, and the file that it is in.
type rbacObject struct {
	file string

	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Rules             []rbacv1.PolicyRule     `json:"rules"`
	AggregationRule   *rbacv1.AggregationRule `json:"aggregationRule"`
	RoleRef           rbacv1.RoleRef          `json:"roleRef"`
}

func (o rbacObject) isRole() bool { return o.Kind == "Role" || o.Kind == "ClusterRole" }

// rbacObjects reads all manifests under config.
func rbacObjects(t *testing.T) []rbacObject {
	t.Helper()
	documentEnd := regexp.MustCompile(`(?m)^---\s*$`)
	var found []rbacObject
	for _, x := range allTexts(t) {
		if !strings.HasPrefix(x.name, "config/") || path.Ext(x.name) != ".yaml" {
			continue
		}
		for _, document := range documentEnd.Split(x.content, -1) {
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
				t.Fatalf("%s: %v", x.name, err)
			}
			if strings.HasSuffix(kind.Kind, "List") {
				t.Fatalf("%s: a list may hide a role: write its objects as documents", x.name)
			}
			if !strings.HasPrefix(kind.APIVersion, rbacv1.GroupName+"/") {
				continue
			}
			o := rbacObject{file: x.name}
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				t.Fatalf("%s: %v", x.name, err)
			}
			found = append(found, o)
		}
	}
	return found
}

// TestNoRoleChangesPods holds for all manifests: no role allows a change of a pod or of its status, and no binding gives a role
// of others, which might.
func TestNoRoleChangesPods(t *testing.T) {
	t.Parallel()
	objects, roles, bindings := rbacObjects(t), map[string]bool{}, 0
	for _, o := range objects {
		if !o.isRole() {
			continue
		}
		roles[o.Kind+" "+o.Name] = true
		if o.AggregationRule != nil {
			t.Errorf("%s: %s takes its rules from other roles", o.file, o.Name)
		}
		for _, rule := range o.Rules {
			if changes(rule, "pods") && !(o.file == evictor && onlyEvicts(rule)) {
				t.Errorf("%s: %s may change pods: %+v", o.file, o.Name, rule)
			}
		}
	}
	for _, o := range objects {
		if o.isRole() {
			continue
		}
		bindings++
		if !roles[o.RoleRef.Kind+" "+o.RoleRef.Name] {
			t.Errorf("%s: %s binds %s %s, which is not under config", o.file, o.Name, o.RoleRef.Kind, o.RoleRef.Name)
		}
	}
	if len(roles) == 0 || bindings == 0 {
		t.Errorf("found %d roles and %d bindings", len(roles), bindings)
	}
}

// TestOnlyComponentsAskAboutTokens holds for all manifests: no role asks about tokens or about what others may do, but those
// that come with the receiver of alerts and with protected metrics.
func TestOnlyComponentsAskAboutTokens(t *testing.T) {
	t.Parallel()
	reviewers := []string{"config/components/alert-receiver/reviewer.yaml", "config/components/protected-metrics/reviewer.yaml"}
	reviews := func(group string) bool {
		return slices.Contains([]string{"*", "authentication.k8s.io", "authorization.k8s.io"}, group)
	}
	checkRules(t, "reviews tokens or access", 4, func(r rbacv1.PolicyRule) bool { return slices.ContainsFunc(r.APIGroups, reviews) },
		func(o rbacObject, r rbacv1.PolicyRule) bool {
			return slices.Contains(reviewers, o.file) && slices.Equal(r.Verbs, []string{"create"})
		})
}

// checkRules holds that so many rules of all manifests are of a kind, and that each of them is allowed. does names the kind.
func checkRules(t *testing.T, does string, want int, is func(rbacv1.PolicyRule) bool, allowed func(rbacObject, rbacv1.PolicyRule) bool) {
	t.Helper()
	found := 0
	for _, o := range rbacObjects(t) {
		for _, rule := range slices.DeleteFunc(o.Rules, func(r rbacv1.PolicyRule) bool { return !is(r) }) {
			if found++; !allowed(o, rule) {
				t.Errorf("%s: %s %s: %+v", o.file, o.Name, does, rule)
			}
		}
	}
	if found != want {
		t.Errorf("found %d rules of which each %s, want %d", found, does, want)
	}
}

// TestOnlyTheReceiverReadsItsSecret holds for all manifests: no role may read or change a Secret, but the one that comes with the
// receiver of alerts, and that one names its Secret.
func TestOnlyTheReceiverReadsItsSecret(t *testing.T) {
	t.Parallel()
	ofSecrets := func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "secrets") || slices.Contains(r.Resources, "*")
	}
	checkRules(t, "reaches Secrets", 1, ofSecrets, func(o rbacObject, r rbacv1.PolicyRule) bool {
		named := slices.Equal(r.ResourceNames, []string{"kubediag-alerts"}) && slices.Equal(r.Verbs, []string{"get", "update"})
		return o.file == "config/components/alert-receiver/certificate.yaml" && o.Kind == "Role" && named
	})
}

// changes reports whether a rule allows more than to read a core resource and what lies beneath it.
func changes(r rbacv1.PolicyRule, name string) bool {
	core := slices.Contains(r.APIGroups, "") || slices.Contains(r.APIGroups, "*")
	concerned := slices.ContainsFunc(r.Resources, func(resource string) bool {
		of, _, _ := strings.Cut(resource, "/")
		return of == name || of == "*"
	})
	writes := slices.ContainsFunc(r.Verbs, func(verb string) bool { return !slices.Contains([]string{"get", "list", "watch"}, verb) })
	return core && concerned && writes
}

// onlyEvicts reports whether a rule allows to create evictions, and nothing else.
func onlyEvicts(r rbacv1.PolicyRule) bool {
	return slices.Equal(r.Resources, []string{"pods/eviction"}) && slices.Equal(r.Verbs, []string{"create"})
}

func TestRulesThatChangePods(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		group, resource, verb string
		want                  bool
	}{
		"read":              {"", "pods", "watch", false},
		"annotate":          {"", "pods/status", "patch", true},
		"delete":            {"", "pods", "delete", true},
		"exec":              {"", "pods/exec", "create", true},
		"any verb":          {"", "pods", "*", true},
		"any resource":      {"*", "*", "patch", true},
		"any status":        {"", "*/status", "update", true},
		"of another group":  {"metrics.k8s.io", "pods", "create", false},
		"another resource":  {"", "events", "create", false},
		"a resource's name": {"", "podtemplates", "patch", false},
	} {
		rule := rbacv1.PolicyRule{APIGroups: []string{c.group}, Resources: []string{c.resource}, Verbs: []string{c.verb}}
		if got := changes(rule, "pods"); got != c.want {
			t.Errorf("%s: changes = %v, want %v", name, got, c.want)
		}
	}
}

// TestOnlyTheCordonerChangesNodes holds for all manifests: no role allows a change of a node, but the one that comes with cordons, which
// allows to patch.
func TestOnlyTheCordonerChangesNodes(t *testing.T) {
	t.Parallel()
	const cordoner = "config/components/cordon/cordoner.yaml"
	changesNodes := func(r rbacv1.PolicyRule) bool { return changes(r, "nodes") }
	checkRules(t, "may change nodes", 1, changesNodes, func(o rbacObject, r rbacv1.PolicyRule) bool {
		return o.file == cordoner && slices.Equal(r.Resources, []string{"nodes"}) && slices.Equal(r.Verbs, []string{"patch"})
	})
}
