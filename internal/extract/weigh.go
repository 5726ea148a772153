// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package extract

import (
	corev1 "k8s.io/api/core/v1"
)

// The memory of one element of a list beside its text, in bytes, rounded up.
const (
	podBytes       = 2 << 10
	containerBytes = 800
	mountBytes     = 128
	volumeBytes    = 512
	statusBytes    = 512
	textBytes      = 64 // a label, an owner, a finalizer, a condition: two or more strings
)

// weigh estimates the size of a pod in memory. The encoded size has all texts once, and numbers that are shorter than in
// memory.
func weigh(pod *corev1.Pod) int {
	bytes := podBytes + 2*pod.Size()
	bytes += textBytes * (len(pod.Labels) + len(pod.Annotations) + 2*len(pod.Finalizers) + 2*len(pod.OwnerReferences) + 3*len(pod.Status.Conditions))
	bytes += volumeBytes * len(pod.Spec.Volumes)
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			bytes += containerBytes + mountBytes*(len(list[i].VolumeMounts)+len(list[i].VolumeDevices))
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		bytes += containerBytes + mountBytes*(len(c.VolumeMounts)+len(c.VolumeDevices))
	}
	s := &pod.Status
	return bytes + statusBytes*(len(s.InitContainerStatuses)+len(s.ContainerStatuses)+len(s.EphemeralContainerStatuses))
}
