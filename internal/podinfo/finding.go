// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
)

// PodOf names a pod in a finding.
func PodOf(pod *corev1.Pod) fault.Pod {
	return fault.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
}

// Subject names the pod, or its container of that name, as the subject of a sentence. container is empty for the pod.
func Subject(pod *corev1.Pod, container string) string {
	text := fmt.Sprintf("pod %s/%s", pod.Namespace, pod.Name)
	if container != "" {
		return fmt.Sprintf("container %q of %s", container, text)
	}
	return text
}

// StateOf returns the state of a pod, which may be nil.
func StateOf(pod *corev1.Pod) fault.PodState {
	switch {
	case pod == nil:
		return ""
	case pod.DeletionTimestamp != nil:
		return fault.PodDeleting
	case Ended(pod):
		return fault.PodEnded
	}
	return fault.PodWanted
}

// SourcePlace is the place of a fault of a hostPath, or of subPath in it. A socket has a place of its own if it is missing, or if
// another kind of file is there. All other sources have the given place; h may be nil.
func SourcePlace(code fault.Code, h *corev1.HostPathVolumeSource, subPath string, place fault.Place) fault.Place {
	missing := code == fault.MissingBindSource && isSocket(h, subPath)
	if missing || code == fault.SourceTypeMismatch && HostPathType(h) == corev1.HostPathSocket {
		return fault.PlaceSocket
	}
	return place
}

// DetailsOf returns the facts of a pod's spec and status about one of its containers.
func DetailsOf(pod *corev1.Pod, container string) fault.Details {
	d := fault.Details{Workload: kubelet.WorkloadOf(pod), PodState: StateOf(pod)}
	switch state, _ := RestartStateOf(pod, container); state {
	case Running:
		d.Container = fault.ContainerRuns
	case Waiting:
		d.Container = fault.ContainerDown
	}
	return d
}
