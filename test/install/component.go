// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Component is the one pod of the agent or of the manager.
func (e *Env) Component(t testing.TB, name string) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	must(t, e.List(t.Context(), &pods, client.InNamespace(Namespace), client.MatchingLabels{"app.kubernetes.io/component": name}))
	if len(pods.Items) != 1 {
		t.Fatalf("there are %d pods of the %s", len(pods.Items), name)
	}
	return &pods.Items[0]
}

// Fetch gets a page from a pod, past any proxy. It fails the test if there is none within a minute.
func Fetch(t testing.TB, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for ever, if the pod hung
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must(t, err)
	response, err := new(http.Transport).RoundTrip(request)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s says %s: %s", url, response.Status, text)
	}
	return string(text)
}
