// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build release

package e2e

import (
	"testing"
	"time"

	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/debian"
)

// TestNodesOfARelease has dead volumes in running containers, pods that cannot go, and healthy ones on nodes that the cluster tier does not
// have: on a kubelet before the newest one, with a control plane of its version, and on a container runtime that is newer than Debian's.
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
				checkWithoutTheBug(t, quick)
			})
		})
	}
}
