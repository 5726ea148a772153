// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// TestBeforeCRDs holds that an agent that comes before the CustomResourceDefinitions is alive and not ready, goes to
// work when they come, and can be stopped before that.
func TestBeforeCRDs(t *testing.T) {
	t.Parallel()
	for name, come := range map[string]bool{"they-come": true, "they-do-not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := installDefault(t)
			n := newTestNode(t, "before-crds-"+name, env.Config)
			n.options.HealthProbeBindAddress = freeAddress(t)
			var installed atomic.Bool
			n.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return apitest.RoundTripper(func(r *http.Request) (*http.Response, error) {
					if strings.HasPrefix(r.URL.Path, "/apis/"+v1.Group+"/") && !installed.Load() {
						r.URL.Path = "/apis/none/v1/none" // answered 404, as before they are there
					}
					return next.RoundTrip(r)
				})
			})
			n.startAgent(t)
			apitest.Eventually(t, func() error { return n.readHealth("/healthz") })
			if err := n.readHealth("/readyz/caches"); err == nil {
				t.Error("an agent without caches is ready")
			}
			if come {
				installed.Store(true)
				apitest.Eventually(t, func() error { return n.readHealth("/readyz/caches") })
				apitest.Eventually(t, func() error {
					key := client.ObjectKey{Namespace: n.options.Namespace, Name: v1.AgentLeaseName(n.name)}
					return env.Client.Get(t.Context(), key, &coordinationv1.Lease{})
				})
			}
			began := time.Now()
			n.stopAgent(t)
			if took := time.Since(began); took > time.Minute {
				t.Errorf("the agent took %s to stop", took)
			}
			root, err := openDataRoot(t.Context(), n.options.DataRoot, 0)
			if err != nil {
				t.Fatalf("the next agent cannot start: %v", err)
			}
			if err := root.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// readHealth asks the agent's probe.
func (n *testNode) readHealth(path string) error {
	answer, err := http.Get("http://" + n.options.HealthProbeBindAddress + path)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s is answered %s", path, answer.Status)
	}
	return errors.Join(err, answer.Body.Close())
}
