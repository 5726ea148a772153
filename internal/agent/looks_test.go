// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/mountstate"
)

// TestLooksAtSources: a missing hostPath is a fault of a container that waits for it. The search passes over containers that run.
func TestLooksAtSources(t *testing.T) {
	t.Parallel()
	const uid = "7f1b6f0a-8c3d-4a57-9a0e-0123456789ab"
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "pods", uid), 0o755); err != nil {
		t.Fatal(err)
	}
	node, err := kubelet.Local(root)
	if err != nil {
		t.Fatal(err)
	}
	pod := kubelettest.WaitingPod(uid, root+"/missing", corev1.ContainerStateWaiting{Reason: "ContainerCreating"})
	a := &agent{pods: &nodePods{}, watched: &volume.Inspector{}}
	look := func() []fault.Finding {
		t.Helper()
		found := a.looks()[fault.SearchSources].(nodeLook)
		survey, err := nodeLook{found.search, node, found.node}.Look(t.Context(), mountstate.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		return survey.Findings
	}
	a.pods.replacePod(nil, pod)
	if found := look(); len(found) != 1 || found[0].Code != fault.MissingBindSource || found[0].Pod.Name != "web" || found[0].Container != "app" {
		t.Errorf("of a container that waits: %+v", found)
	}
	running := pod.DeepCopy()
	running.Status.Phase = corev1.PodRunning
	running.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	a.pods.replacePod(pod, running)
	if found := look(); len(found) != 0 {
		t.Errorf("of a container that runs: %+v", found)
	}
	var kinds int
	for _, s := range searches.All() {
		if _, made := a.looks()[s.Kind]; made {
			kinds++
		}
	}
	if kinds != 4 {
		t.Errorf("%d searches, want sources, devices, mounts and pods that are being deleted", kinds)
	}
}
