// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// KubeletPlugin returns the kubelet's name for the kind of volume, if it keeps the content itself; empty for all others.
func KubeletPlugin(v corev1.Volume) string {
	switch {
	case v.ConfigMap != nil:
		return "kubernetes.io/configmap"
	case v.Secret != nil:
		return "kubernetes.io/secret"
	case v.Projected != nil:
		return "kubernetes.io/projected"
	case v.DownwardAPI != nil:
		return "kubernetes.io/downward-api"
	case v.EmptyDir != nil:
		return "kubernetes.io/empty-dir"
	case v.GitRepo != nil:
		return "kubernetes.io/git-repo"
	}
	return ""
}

// VolumesOf lists the volumes that a container mounts, each once.
func VolumesOf(pod *corev1.Pod, name string) []corev1.Volume {
	mounted := map[string]bool{}
	for _, m := range VolumeMounts(pod, name) {
		mounted[m.Name] = true
	}
	return slices.DeleteFunc(slices.Clone(pod.Spec.Volumes), func(v corev1.Volume) bool { return !mounted[v.Name] })
}

// CreatesHostPath reports whether the path of a hostPath volume is made if it is not there: by the kubelet for
// DirectoryOrCreate and FileOrCreate, and by the runtime, as an empty directory, for a volume without a type.
func CreatesHostPath(h *corev1.HostPathVolumeSource) bool {
	return slices.Contains([]corev1.HostPathType{corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathFileOrCreate}, HostPathType(h))
}

// isSocket reports whether a hostPath, or subPath in it, is a socket by its type or its name.
func isSocket(h *corev1.HostPathVolumeSource, subPath string) bool {
	switch HostPathType(h) {
	case corev1.HostPathSocket:
		return true
	case corev1.HostPathCharDev, corev1.HostPathBlockDev:
		return false
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		return path.Ext(subPath) == ".sock"
	}
	return h != nil && path.Ext(path.Join(h.Path, subPath)) == ".sock"
}

// HostPathType returns the type of a hostPath volume.
func HostPathType(h *corev1.HostPathVolumeSource) corev1.HostPathType {
	if h == nil || h.Type == nil {
		return corev1.HostPathUnset
	}
	return *h.Type
}

// MayWrite reports whether a container of the pod is given a volume of its spec to write.
func MayWrite(pod *corev1.Pod, s corev1.Volume) bool {
	if s.PersistentVolumeClaim != nil && s.PersistentVolumeClaim.ReadOnly || s.CSI != nil && s.CSI.ReadOnly != nil && *s.CSI.ReadOnly {
		return false
	}
	return slices.ContainsFunc(ContainerNames(pod), func(container string) bool {
		return slices.ContainsFunc(VolumeMounts(pod, container), func(m corev1.VolumeMount) bool {
			return m.Name == s.Name && !m.ReadOnly
		})
	})
}
