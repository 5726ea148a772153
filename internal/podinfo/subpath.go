// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
)

// SubPathMount is one subPath in the volumeMounts of a container.
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

// FindSubPathMount returns the subPath of the pod that belongs at point. ok is false if the kubelet would not bind a subPath of this pod there:
// another root, another pod, a container, an index or a volume that the spec does not have. It is called for each bind of a pod, so it does
// not list them all.
func FindSubPathMount(n *kubelet.Node, pod *corev1.Pod, point string) (want SubPathMount, ok bool) {
	s, ok := n.ParseSubPath(point)
	if !ok || s.PodUID != string(pod.UID) {
		return SubPathMount{}, false
	}
	for _, c := range containers(pod) {
		if c.name != s.Container || s.Index < 0 || s.Index >= len(c.mounts) {
			continue
		}
		m := c.mounts[s.Index]
		for i := len(pod.Spec.Volumes) - 1; i >= 0; i-- {
			v := &pod.Spec.Volumes[i]
			if v.Name == m.Name && v.Image == nil && (m.SubPath != "" || m.SubPathExpr != "") && (v.Name == s.Volume || Renamed(*v)) {
				return SubPathMount{Container: c.name, Index: s.Index, Mount: m, Volume: *v}, true
			}
		}
	}
	return SubPathMount{}, false
}

// Renamed reports whether the kubelet may have another name for a volume than the pod: the PersistentVolume behind a claim,
// or a name made up if a volume is handed to a CSI driver. The pod has neither name.
func Renamed(v corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.AWSElasticBlockStore != nil ||
		v.GCEPersistentDisk != nil || v.AzureDisk != nil || v.AzureFile != nil || v.Cinder != nil ||
		v.VsphereVolume != nil || v.PortworxVolume != nil || v.RBD != nil
}
