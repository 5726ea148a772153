// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package mountfault

import (
	"os/exec"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/program"
)

// collectorPatience is how long Kubernetes' garbage collector may take, its start included.
const collectorPatience = 2 * time.Minute

// startGarbageCollector starts the part of Kubernetes that deletes objects whose owners are gone.
func startGarbageCollector(t *testing.T, config *rest.Config) {
	t.Helper()
	path, err := cluster.ControllerManager(t.Context())
	must(t, err)
	program.Start(t, exec.Command(path, "--kubeconfig="+apitest.Kubeconfig(t, config), "--controllers=garbage-collector-controller",
		"--leader-elect=false", "--secure-port=0"))
}

// TestADeletedPodTakesItsFaultsAlong, and one that is there keeps them. No agent runs when the pod goes.
func TestADeletedPodTakesItsFaultsAlong(t *testing.T) {
	n := newRealNode(t, apitest.Start(t))
	gone, stays := n.realPod(t, "gone"), n.realPod(t, "stays")
	stop := n.run(t)
	n.set(stale(gone, "app"), dead(gone, ""), stale(stays, "app"), orphan("u"))
	n.awaitCount(t, 4)
	stop()
	must(t, n.env.Client.Delete(t.Context(), gone, client.GracePeriodSeconds(0)))
	startGarbageCollector(t, n.env.Config)
	for deadline := time.Now().Add(collectorPatience); len(n.all(t)) != 2; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("left: %+v", n.all(t))
		}
	}
	for _, f := range n.all(t) {
		if p := f.Status.Pod; p != nil && p.UID != stays.UID {
			t.Errorf("left: %+v", f)
		}
	}
}
