// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

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
