// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/cli/verb"
)

// TestPodsOfAWorkload: those that are not ready come first, pods that have ended are left out, and the rest is counted.
func TestPodsOfAWorkload(t *testing.T) {
	t.Parallel()
	pod := func(name, phase, ready string) string {
		return fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q},"status":{"phase":%q,"conditions":[{"type":"Ready","status":%q}]}}`, name, phase, ready)
	}
	pods := strings.Join([]string{
		pod("a", "Running", "True"), pod("b", "Succeeded", "False"), pod("c", "Running", "False"), pod("d", "Running", "True"), pod("e", "Pending", "False"), pod("f", "Running", "True"),
	}, ",")
	const apps = "GET /apis/apps/v1/namespaces/shop/"
	recorded := &recordedServer{answers: map[string]string{
		apps + "deployments/web":             `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"selector":{"matchLabels":{"app":"web"}}}}`,
		apps + "statefulsets/web":            `{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"web"},"spec":{"selector":{"matchLabels":{"app":"web"}}}}`,
		apps + "daemonsets/gone":             missing("daemonsets"),
		"GET /api/v1/namespaces/shop/pods":   `{"apiVersion":"v1","kind":"PodList","items":[` + pods + `]}`,
		"GET /api/v1/namespaces/shop/pods/a": pod("a", "Running", "True"),
	}}
	c := clientOf(t, recorded, "shop")
	for argument, want := range map[string][]string{
		"deploy/web": {"pod/c", "pod/e", "pod/a"}, "sts/web": {"pod/c", "pod/e", "pod/a"}, "a": {"pod/a"}, "pod/a": {"pod/a"}, "ds/gone": nil, "cronjob/x": nil, "a/b/c": nil, "": nil,
	} {
		targets, err := targetFinder{api: c}.find(t.Context(), argument)
		got := verb.Distinct(targets, func(d diagnosisTarget) string { return d.argument })
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: %q, want %q, error %v", argument, got, want, err)
		}
		if n := len(targets); n > 1 && targets[n-1].left != 2 {
			t.Errorf("%q: %d are left, want 2", argument, targets[n-1].left)
		}
	}
	if asked := "GET /api/v1/namespaces/shop/pods?labelSelector=app%3Dweb"; !slices.Contains(recorded.asked, asked) {
		t.Errorf("asked for %q, and not for %s", recorded.asked, asked)
	}
}
