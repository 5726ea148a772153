// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package subpath compares the subPath binds that the kubelet has made for a pod with the pod's spec and with what
// the kernel says about them, and tells the stale ones (kubernetes#68211) from the others.
//
// What is a bind of the pod is decided by the pod's UID and spec and by the kubelet's way to name directories; whether
// it is stale, by the kernel. No text that anybody reports plays a part. It changes nothing.
//
// It rests on kubernetes/pkg/volume/util/subpath/subpath_linux.go: up to 1.18 the kubelet keeps a bind that is there,
// whatever has become of its source. And on the kernel, which refuses to bind what has been unlinked.
package subpath

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
)

// SubPathMount is one subPath that a container of a pod asks for.
type SubPathMount struct {
	Container string
	// Index is the position in the container's volumeMounts.
	Index  int
	Mount  corev1.VolumeMount
	Volume corev1.Volume
}

// SubPathMounts lists the subPaths of a pod's init, regular and ephemeral containers in the order of its spec. Image volumes
// are left out: the container runtime mounts those itself.
func SubPathMounts(pod *corev1.Pod) []SubPathMount {
	volumes := map[string]corev1.Volume{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = v
	}
	var wants []SubPathMount
	for _, c := range containers(pod) {
		for i, m := range c.mounts {
			volume, ok := volumes[m.Name]
			if ok && volume.Image == nil && (m.SubPath != "" || m.SubPathExpr != "") {
				wants = append(wants, SubPathMount{Container: c.name, Index: i, Mount: m, Volume: volume})
			}
		}
	}
	return wants
}

// FindSubPathMount gives what the pod wants at point. ok is false where the kubelet would not bind a subPath of this pod there:
// another root, another pod, a container, an index or a volume that the spec does not have.
func FindSubPathMount(n *kubelet.Node, pod *corev1.Pod, point string) (want SubPathMount, ok bool) {
	s, ok := n.ParseSubPath(point)
	if !ok || s.PodUID != string(pod.UID) {
		return SubPathMount{}, false
	}
	for _, w := range SubPathMounts(pod) {
		if w.Container == s.Container && w.Index == s.Index && (w.Volume.Name == s.Volume || renamed(w.Volume)) {
			return w, true
		}
	}
	return SubPathMount{}, false
}

// renamed tells whether the kubelet may have another name for a volume than the pod: that of the PersistentVolume
// behind a claim, or one made up where a volume is handed to a CSI driver. The pod does not say which.
func renamed(v corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.AWSElasticBlockStore != nil ||
		v.GCEPersistentDisk != nil || v.AzureDisk != nil || v.AzureFile != nil || v.Cinder != nil ||
		v.VsphereVolume != nil || v.PortworxVolume != nil || v.RBD != nil
}

// KubeletPlugin is the kubelet's name for the kind of volume, where it keeps the content itself; empty for all others.
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
	}
	return ""
}

// container is what the three kinds of containers have in common.
type container struct {
	name   string
	mounts []corev1.VolumeMount
	env    []corev1.EnvVar
	kind   kind
	always bool // restarted whatever the pod's policy: a sidecar
}

type kind int

const (
	regular kind = iota
	initial
	ephemeral
)

// HasContainer reports whether the pod has a container of that name, of any kind.
func HasContainer(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(containers(pod), func(c container) bool { return c.name == name })
}

func containers(pod *corev1.Pod) []container {
	var all []container
	for _, c := range pod.Spec.InitContainers {
		always := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		all = append(all, container{name: c.Name, mounts: c.VolumeMounts, env: c.Env, kind: initial, always: always})
	}
	for _, c := range pod.Spec.Containers {
		all = append(all, container{name: c.Name, mounts: c.VolumeMounts, env: c.Env})
	}
	for _, c := range pod.Spec.EphemeralContainers {
		all = append(all, container{name: c.Name, mounts: c.VolumeMounts, env: c.Env, kind: ephemeral})
	}
	return all
}
