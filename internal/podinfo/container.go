// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// container has the fields that the three kinds of containers have in common.
type container struct {
	name   string
	mounts []corev1.VolumeMount
	// devices are of raw block volumes.
	devices []corev1.VolumeDevice
	env     []corev1.EnvVar
	kind    kind
	always  bool // restarted with any policy of the pod: a sidecar
}

type kind int

const (
	regular kind = iota
	initial
	ephemeral
)

// ContainerNames lists the containers of the pod, of any kind, in the order of its spec.
func ContainerNames(pod *corev1.Pod) []string {
	var names []string
	for _, c := range containers(pod) {
		names = append(names, c.name)
	}
	return names
}

// HasContainer reports whether the pod has a container of that name, of any kind.
func HasContainer(pod *corev1.Pod, name string) bool {
	return slices.Contains(ContainerNames(pod), name)
}

// VolumeMounts lists the mounts of the container of that name.
func VolumeMounts(pod *corev1.Pod, name string) []corev1.VolumeMount {
	c, _ := findContainer(pod, name)
	return c.mounts
}

// UsedVolumes are the names of the volumes that containers of the pod mount, and of those that they have as devices.
func UsedVolumes(pod *corev1.Pod) (mounted, devices map[string]bool) {
	mounted, devices = map[string]bool{}, map[string]bool{}
	for _, c := range containers(pod) {
		for _, m := range c.mounts {
			mounted[m.Name] = true
		}
		for _, d := range c.devices {
			devices[d.Name] = true
		}
	}
	return mounted, devices
}

// StartedVolumes are the names of the volumes that are there, if all is well, since a container was started. The kubelet waits for the
// volumes of all containers before it starts the first one. A volume that only an ephemeral container has may come later.
func StartedVolumes(pod *corev1.Pod) map[string]bool {
	up := map[string]bool{}
	all := containers(pod)
	began := func(c container) bool {
		s, _ := ContainerStatus(pod, c.name)
		return s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
	}
	first := !Ended(pod) && slices.ContainsFunc(all, func(c container) bool { return c.kind != ephemeral && began(c) })
	for _, c := range all {
		if !first || c.kind == ephemeral && !began(c) {
			continue
		}
		for _, m := range c.mounts {
			up[m.Name] = true
		}
		for _, d := range c.devices {
			up[d.Name] = true
		}
	}
	return up
}

func findContainer(pod *corev1.Pod, name string) (c container, ok bool) {
	all := containers(pod)
	i := slices.IndexFunc(all, func(c container) bool { return c.name == name })
	if i < 0 {
		return container{}, false
	}
	return all[i], true
}

func containers(pod *corev1.Pod) []container {
	var all []container
	for _, c := range pod.Spec.InitContainers {
		always := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		all = append(all, container{name: c.Name, mounts: c.VolumeMounts, devices: c.VolumeDevices, env: c.Env, kind: initial, always: always})
	}
	for _, c := range pod.Spec.Containers {
		all = append(all, container{name: c.Name, mounts: c.VolumeMounts, devices: c.VolumeDevices, env: c.Env})
	}
	for _, c := range pod.Spec.EphemeralContainers {
		all = append(all, container{name: c.Name, mounts: c.VolumeMounts, devices: c.VolumeDevices, env: c.Env, kind: ephemeral})
	}
	return all
}
