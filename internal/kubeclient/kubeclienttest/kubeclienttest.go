// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubeclienttest makes clients of an API server in memory. It is for tests alone.
package kubeclienttest

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"kubediag.org/kubediag/internal/kubeclient"
)

// Builder builds a client that knows the kinds that the manager and the agent know.
func Builder(t testing.TB) *fake.ClientBuilder {
	t.Helper()
	scheme, err := kubeclient.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme)
}
