// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/podinfo"
)

// ParamVolume is the parameter that narrows an inspection to the volume of this name: the kubelet's, which is that of
// the PersistentVolume if the volume comes from a claim. It never widens what may be changed.
const ParamVolume = "param.diagnoser.kubernetes.volume_health.volume"

// inSpec lists the volumes of the pod's spec that this one may be. A spec does not name the PersistentVolume that a claim is
// bound to: a volume of a claim may be any claim's.
func (v *Volume) inSpec(pod *corev1.Pod) (may []corev1.Volume) {
	named := slices.ContainsFunc(pod.Spec.Volumes, func(s corev1.Volume) bool { return s.Name == v.Name && !podinfo.FromClaim(s) })
	for _, s := range pod.Spec.Volumes {
		if named && s.Name == v.Name || !named && v.Plugin != HostPathPlugin && podinfo.FromClaim(s) {
			may = append(may, s)
		}
	}
	return may
}

// Mounters lists the containers of its pod that mount the volume, by the pod's spec.
func (v *Volume) Mounters(pod *corev1.Pod) []string {
	if v.Container != "" {
		return []string{v.Container}
	}
	may := v.inSpec(pod)
	var names []string
	for _, name := range podinfo.ContainerNames(pod) {
		if slices.ContainsFunc(podinfo.VolumeMounts(pod, name), func(m corev1.VolumeMount) bool {
			return slices.ContainsFunc(may, func(s corev1.Volume) bool { return s.Name == m.Name })
		}) {
			names = append(names, name)
		}
	}
	return names
}
