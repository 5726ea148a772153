// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// Limited is a configuration for a user who may do what the roles in config/rbac/<part> say and nothing else, with the Roles
// in the given namespace instead of the one that is written there. A ClusterRole has the namespace as the end of its name.
func (e *Env) Limited(t testing.TB, part, namespace string) *rest.Config {
	t.Helper()
	root, err := moduleRoot()
	must(t, err)
	files, err := filepath.Glob(filepath.Join(root, "config", "rbac", part, "*.yaml"))
	must(t, err)
	var objects []*unstructured.Unstructured
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatalf("reading roles: %v", err)
		}
		objects = append(objects, Objects(t, string(text))...)
	}
	user := "system:serviceaccount:" + namespace + ":kubediag-" + part // policies know such names
	for _, role := range objects {
		if !strings.HasSuffix(role.GetKind(), "Role") {
			continue
		}
		role.SetName(role.GetName() + "-" + namespace)
		if role.GetKind() == "Role" {
			role.SetNamespace(namespace)
		}
		for _, o := range []*unstructured.Unstructured{role, binding(role, user)} {
			if err := e.Client.Create(context.Background(), o); err != nil {
				t.Fatalf("creating %s: %v", o.GetKind(), err)
			}
		}
	}
	config := rest.CopyConfig(e.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	return config
}

// PolicyFor applies a file of config/policy with a user as the account of kubediag that the file names, until the test has ended. It skips a test
// whose API server has no policies.
func (e *Env) PolicyFor(t testing.TB, file, part, user string) {
	t.Helper()
	NeedPolicies(t)
	root, err := moduleRoot()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(root, "config", "policy", file))
	if err != nil {
		t.Fatalf("reading policy: %v", err)
	}
	account := "'system:serviceaccount:kubediag:kubediag-" + part + "'"
	if !strings.Contains(string(text), account) {
		t.Fatalf("%s does not name %s", file, account)
	}
	for _, o := range Objects(t, strings.ReplaceAll(string(text), account, "'"+user+"'")) {
		e.MustCreate(t, o)
	}
}

// binding gives a role, of the cluster or of a namespace, to a user.
func binding(role *unstructured.Unstructured, user string) *unstructured.Unstructured {
	b := &unstructured.Unstructured{Object: map[string]any{
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": role.GetKind(), "name": role.GetName()},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}},
	}}
	b.SetAPIVersion(role.GetAPIVersion())
	b.SetKind(role.GetKind() + "Binding")
	b.SetName(role.GetName())
	b.SetNamespace(role.GetNamespace())
	return b
}
