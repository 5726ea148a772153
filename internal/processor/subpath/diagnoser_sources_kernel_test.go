// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
)

// TestPodThatIsOver has the kubelet take the volumes of a pod away, wholly or in part: that is no fault.
func TestPodThatIsOver(t *testing.T) {
	for name, c := range map[string]struct {
		phase corev1.PodPhase
		exit  int32
		stale bool // a bind is left, and its source has gone
	}{
		"failed":               {corev1.PodFailed, 1, false},
		"failed, bind left":    {corev1.PodFailed, 1, true},
		"succeeded":            {corev1.PodSucceeded, 0, false},
		"succeeded, bind left": {corev1.PodSucceeded, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, pod := kubelettest.New(t), kubelettest.NewPod()
			pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
				{Name: "configmap", MountPath: "/x", SubPath: "key"}, {Name: "secret", MountPath: "/s"}, {Name: "host", MountPath: "/h"},
			}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: c.exit, Reason: "Error"},
			}}}
			if c.stale {
				s.Bind(filepath.Join(s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": ""}), "key"),
					s.Point(pod, "configmap", "app", 0))
				s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"other": ""})
				must(t, os.Remove(filepath.Join(s.Volume(pod, kubelettest.ConfigMap, "configmap"), "key")))
			}
			before := diagnose(t, s, pod, nil)
			if c.exit != 0 && len(before.Findings) == 0 {
				t.Errorf("while it runs: %+v, want a fault", before)
			}
			pod.Status.Phase = c.phase
			result := diagnose(t, s, pod, nil)
			if len(result.Findings) != 0 || len(result.Values) != 0 {
				t.Errorf("findings %+v, values %v, want none", result.Findings, result.Values)
			}
			expectParts(t, result, "pod default/web has no fault: the pod has ended ("+string(c.phase)+"), so no container of it is started again")
		})
	}
}

// TestPodWithoutSubPaths has a container wait for its volumes: whatever it mounts is looked at.
func TestPodWithoutSubPaths(t *testing.T) {
	s, pod := kubelettest.New(t), kubelettest.NewPod()
	kind, host := corev1.HostPathDirectory, pod.Spec.Volumes[len(pod.Spec.Volumes)-1].HostPath
	host.Type, host.Path = &kind, filepath.Join(s.Root, "none")
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/h"}}
	result := diagnose(t, s, pod, nil)
	if result.NotApplicable != "pod default/web mounts no volume with a subPath" || len(result.Findings) != 0 {
		t.Errorf("a pod that runs: %+v", result)
	}
	pod.Status.Phase = corev1.PodPending
	pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "app", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"},
	}}
	result = diagnose(t, s, pod, nil)
	if len(result.Findings) != 1 || result.Findings[0].Code != fault.MissingBindSource || result.Findings[0].Volume != "host" {
		t.Errorf("a pod that waits: %+v, want %s", result, fault.MissingBindSource)
	}
	expectParts(t, result, "mounts no volume with a subPath", `container "app" is waiting (ContainerCreating)`, `"`+host.Path+`": nothing is there`)
	must(t, os.WriteFile(host.Path, nil, 0o600))
	result = diagnose(t, s, pod, nil)
	if len(result.Findings) != 1 || result.Findings[0].Code != fault.SourceTypeMismatch {
		t.Errorf("a file for a directory: %+v, want %s", result, fault.SourceTypeMismatch)
	}
	expectParts(t, result, "that is a regular file, and type Directory of the volume takes a directory only")
	must(t, os.Remove(host.Path))
	must(t, os.Mkdir(host.Path, 0o755))
	if result = diagnose(t, s, pod, nil); len(result.Findings) != 0 {
		t.Errorf("made since: %+v, want no fault", result)
	}
}
