// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Clientset is client-go's own client, for what the one of controller-runtime does not do.
func Clientset(t testing.TB, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	set, err := kubernetes.NewForConfig(config)
	must(t, err)
	return set
}

// As is a client with another configuration than that of the Env, such as one for another user.
func (e *Env) As(t testing.TB, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: e.Client.Scheme()})
	must(t, err)
	return c
}
