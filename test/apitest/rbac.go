// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// Limited is a configuration for somebody who may do what config/rbac/<part>/role.yaml says and nothing else, with the
// Roles in the given namespace instead of the one that is written there.
func (e *Env) Limited(t testing.TB, part, namespace string) *rest.Config {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "config", "rbac", part, "role.yaml"))
	if err != nil {
		t.Fatalf("reading roles: %v", err)
	}
	user := part + "-" + namespace
	for _, role := range Objects(t, string(text)) {
		role.SetName(user)
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
