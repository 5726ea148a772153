// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelettest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// NodeName is the node of the pods of this package.
const NodeName = "my-node"

// NewPod is a pod with a volume of each kind that the kubelet fills, named after its kind ("configmap", "secret",
// "projected", "downward", "empty"), a claim "claim" and a hostPath "host", and the containers app and sidecar, which
// run and mount nothing. Each run of the kernel tests has a UID of its own: processes of a pod are found on the whole machine, so that
// another run that goes on beside it would have pods of this one.
func NewPod() *corev1.Pod {
	volume := func(name string, source corev1.VolumeSource) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: source}
	}
	uid := types.UID("5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10")
	if run := kerneltest.Run(); run != 0 {
		uid = types.UID(fmt.Sprintf("5f0e5d0c-3a7c-4a53-9f0e-%012x", run))
	}
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: uid},
		Spec: corev1.PodSpec{
			NodeName:      NodeName,
			RestartPolicy: corev1.RestartPolicyAlways,
			Containers:    []corev1.Container{{Name: "app"}, {Name: "sidecar"}},
			Volumes: []corev1.Volume{
				volume("configmap", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}),
				volume("secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}),
				volume("projected", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}),
				volume("downward", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}),
				volume("empty", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
				volume("claim", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}),
				volume("host", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}}),
			},
		},
		Status: corev1.PodStatus{
			Phase:             corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{Running("app"), Running("sidecar")},
		},
	}
}

// WaitingPod is a pod whose container app waits for a hostPath, a directory at a path, for a reason.
func WaitingPod(uid types.UID, hostPath string, why corev1.ContainerStateWaiting) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: uid},
		Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: hostPath, Type: new(corev1.HostPathDirectory),
			}}}},
			Containers: []corev1.Container{{Name: "app", VolumeMounts: []corev1.VolumeMount{{Name: "host", MountPath: "/host"}}}},
		},
		Status: corev1.PodStatus{
			Phase:             corev1.PodPending,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &why}}},
		},
	}
}

// Running is the status of a container that runs.
func Running(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: name, ContainerID: "containerd://" + name + "-1",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}
}

// Failing is the status of a container that the runtime could not start, with the runtime's message.
func Failing(name, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: name, ContainerID: "containerd://" + name + "-2",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 40s restarting failed container"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason: "StartError", ExitCode: 128, Message: message, StartedAt: metav1.Unix(0, 0), FinishedAt: metav1.Now(),
			ContainerID: "containerd://" + name + "-2",
		}},
	}
}
