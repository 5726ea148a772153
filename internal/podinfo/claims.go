// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

import corev1 "k8s.io/api/core/v1"

// Claims lists the claims of a pod. Claims of ephemeral volumes have the names that Kubernetes gives them.
func Claims(pod *corev1.Pod) []string {
	var names []string
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, pod.Name+"-"+v.Name)
		}
	}
	return names
}

// ClaimVolume finds the volume of the pod's spec that the kubelet calls by the name of the PersistentVolume behind its claim. The
// spec does not say which PersistentVolume that is: the pod's only such volume is known, and of several the one with a subPath
// bind. bound reports whether the kubelet has a bind of the PersistentVolume for that entry of a container's volumeMounts.
func ClaimVolume(pod *corev1.Pod, persistentVolume string, bound func(container string, index int) bool) (name string, ok bool) {
	var may []corev1.Volume
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.Name == persistentVolume && !FromClaim(v):
			return "", false
		case Renamed(v):
			may = append(may, v)
		}
	}
	if len(may) == 1 && FromClaim(may[0]) {
		return may[0].Name, true
	}
	for _, m := range SubPathMounts(pod) {
		switch {
		case !FromClaim(m.Volume) || !bound(m.Container, m.Index):
			continue
		case ok && m.Volume.Name != name:
			return "", false
		}
		name, ok = m.Volume.Name, true
	}
	return name, ok
}

// FromClaim reports whether a volume comes from a PersistentVolumeClaim, given or made for the pod.
func FromClaim(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }
