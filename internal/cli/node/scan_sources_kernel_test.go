// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
)

// TestScanOfWhatIsMissing has pods wait for sources that are not there, and other pods that do not wait, or not on this
// node.
func TestScanOfWhatIsMissing(t *testing.T) {
	s, pods := newStage(t, 4, 1)
	kind := corev1.HostPathDirectory
	elsewhere := kubelettest.NewPod()
	elsewhere.Name, elsewhere.UID = "elsewhere", "00000000-0000-0000-0000-0000000000ff"
	for _, pod := range append(pods[:len(pods):len(pods)], elsewhere) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "plain", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(s.Root, "none"), Type: &kind},
		}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "plain", MountPath: "/plain"})
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}},
			kubelettest.Running("sidecar"),
		}}
	}
	pods[1].Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{kubelettest.Running("app"), kubelettest.Running("sidecar")}}
	pods[2].Status.Phase, pods[3].Status.Phase = corev1.PodSucceeded, corev1.PodFailed
	updateConfigMap(s, pods[3]) // what is bound for it has gone
	r, err := scanJSON(t, podList(t, append(pods, elsewhere)...), "--kubelet-root", s.Root, "--pods", "-")
	if !errors.Is(err, verb.ErrFaults) {
		t.Fatalf("ends with %v, want %v", err, verb.ErrFaults)
	}
	var got []string
	for _, f := range r.Faults {
		got = append(got, string(f.Code)+" "+f.Pod.Name+" "+f.Container+" "+f.Volume)
	}
	if diff := cmp.Diff([]string{string(fault.MissingBindSource) + " web-0 app plain"}, got); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}
