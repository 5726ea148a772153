// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build release

package e2e

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/debian"
	"kubediag.org/kubediag/test/install"
)

// TestNodesOfARelease has dead volumes in running containers, pods that cannot go, healthy ones, and a stale bind on nodes that the cluster
// tier does not have: on a kubelet before the newest one, with a control plane of its version, and on a container runtime that is newer than Debian's.
func TestNodesOfARelease(t *testing.T) {
	must(t, debian.Install(t.Context(), "bindfs"))
	for name, o := range map[string]cluster.Options{
		"kubelet " + cluster.Kubernetes136:  {Kubelet: cluster.Kubernetes136},
		"containerd " + cluster.Containerd2: {Kubelet: cluster.Kubernetes137, Containerd: cluster.Containerd2},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, o.Prepare(t.Context()))
			t.Run("dead volume", func(t *testing.T) {
				t.Parallel()
				checkClient(t, clients["mergerfs"], o)
			})
			t.Run("pods that cannot go", func(t *testing.T) {
				t.Parallel()
				checkPodsThatCannotGo(t, o)
			})
			t.Run("without the bug", func(t *testing.T) {
				t.Parallel()
				quick := o
				quick.SyncFrequency = time.Second
				e := checkWithoutTheBug(t, quick)
				t.Run("a bind that the kubelet keeps", e.keptBindIsRepaired)
			})
		})
	}
}

// TestOldControlPlane has a dead volume in running containers with the oldest kubelet, below the oldest API server.
func TestOldControlPlane(t *testing.T) {
	t.Parallel()
	checkClient(t, clients["mergerfs"], cluster.Options{Kubelet: cluster.Kubernetes118, ControlPlane: cluster.Kubernetes124})
}

// TestLessThanPrivileged has a dead volume in running containers on a node whose agent is not privileged, and has the capabilities of
// config/integrations/unprivileged.yaml instead.
func TestLessThanPrivileged(t *testing.T) {
	t.Parallel()
	v := startClient(t, clients["mergerfs"], cluster.Options{Kubelet: cluster.Kubernetes137})
	text, err := os.ReadFile("../../config/integrations/unprivileged.yaml")
	must(t, err)
	var values struct {
		Agent struct{ SecurityContext *corev1.SecurityContext }
	}
	must(t, yaml.Unmarshal(text, &values))
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
		"containers": []any{map[string]any{"name": "agent", "securityContext": values.Agent.SecurityContext}},
	}}}})
	must(t, err)
	v.Kubectl(t, "", "patch", "daemonset", "-n", install.Namespace, "kubediag-agent", "-p", string(patch))
	v.SetSentinel(t, "Observe") // waits for the new agent
	if has := v.Component(t, "agent").Spec.Containers[0].SecurityContext; has.Privileged == nil || *has.Privileged || len(has.Capabilities.Add) != 9 {
		t.Fatalf("the agent has %+v", has)
	}
	v.stopAndKill(t)
}
