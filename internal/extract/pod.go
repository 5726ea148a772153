// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package extract makes of a pod the part that a cache keeps: names, owner, volumes, mounts, states, and the annotations by which the
// owner of the pod instructs kubediag. Users write the rest, such as variables and arguments, and the API server takes a megabyte of it for each pod.
//
// The part has a bound of its own, because volumes and mounts alone can be as large. It reads the pod alone.
package extract

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/podinfo"
)

// The bounds of one pod in memory, in bytes as weigh counts them. The kubelet bounds how many pods of a node have not ended. Thousands
// may have ended, and their mounts are not needed. Few of them are being deleted: a dead mount may be the only thing that keeps such a
// pod, and four containers with eight volumes weigh 24 KiB.
const (
	maxBytes        = 64 << 10
	maxLeavingBytes = 32 << 10
	maxEndedBytes   = 8 << 10
)

// annotationLarge is on a pod of which only the name, the owner and the phase are kept, because the rest is larger than the bound. No
// user can set it: the API server takes no annotation with a blank in its name.
const annotationLarge = "too large"

// Large reports whether the volumes and mounts of a pod were too large to keep. They are read from the API server then.
func Large(pod *corev1.Pod) bool { return pod.Annotations[annotationLarge] != "" }

// Pod returns the part of a pod that is kept. A subPathExpr that can be resolved has its subPath beside it, because the variables
// are not kept. The result shares no memory that can grow with the pod.
func Pod(pod *corev1.Pod) *corev1.Pod {
	kept, bytes := Whole(pod)
	most := maxBytes
	if podinfo.Ended(pod) {
		most = maxEndedBytes
		if pod.DeletionTimestamp != nil {
			most = maxLeavingBytes
		}
	}
	if bytes <= most {
		return kept
	}
	// The name, the owner and the phase.
	part := &corev1.Pod{
		TypeMeta: kept.TypeMeta, ObjectMeta: *kept.ObjectMeta.DeepCopy(),
		Spec:   corev1.PodSpec{NodeName: kept.Spec.NodeName, RestartPolicy: kept.Spec.RestartPolicy},
		Status: corev1.PodStatus{Phase: kept.Status.Phase, StartTime: kept.Status.StartTime},
	}
	part.Labels, part.Finalizers = nil, nil
	if weigh(part) > maxEndedBytes { // such as a thousand owners
		part.OwnerReferences = nil
	}
	metav1.SetMetaDataAnnotation(&part.ObjectMeta, annotationLarge, "true")
	return part
}

// Whole is Pod without a bound: bytes is the memory that the part takes. The caller bounds it.
func Whole(pod *corev1.Pod) (part *corev1.Pod, bytes int) {
	s := &pod.Status
	kept := &corev1.Pod{
		TypeMeta: pod.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Generation: pod.Generation,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			Labels:                     pod.Labels, OwnerReferences: pod.OwnerReferences, Finalizers: pod.Finalizers,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, RestartPolicy: pod.Spec.RestartPolicy, Volumes: volumesOf(pod.Spec.Volumes),
		},
		Status: corev1.PodStatus{
			Phase: s.Phase, Reason: s.Reason, Message: s.Message, StartTime: s.StartTime, Conditions: s.Conditions,
			InitContainerStatuses:      containerStatuses(s.InitContainerStatuses),
			ContainerStatuses:          containerStatuses(s.ContainerStatuses),
			EphemeralContainerStatuses: containerStatuses(s.EphemeralContainerStatuses),
		},
	}
	for _, key := range annotations {
		if value, ok := pod.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, key, value[:min(len(value), maxAnnotationBytes)])
		}
	}
	for _, c := range pod.Spec.InitContainers {
		kept.Spec.InitContainers = append(kept.Spec.InitContainers, corev1.Container(containerOf(pod, corev1.EphemeralContainerCommon(c))))
	}
	for _, c := range pod.Spec.Containers {
		kept.Spec.Containers = append(kept.Spec.Containers, corev1.Container(containerOf(pod, corev1.EphemeralContainerCommon(c))))
	}
	for _, c := range pod.Spec.EphemeralContainers {
		kept.Spec.EphemeralContainers = append(kept.Spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: containerOf(pod, c.EphemeralContainerCommon),
		})
	}
	return kept, weigh(kept)
}

// annotations are the keys that are kept: the owner's wish about repairs, and the UIDs by which the kubelet calls a static pod. A part
// that is reduced once more stays marked.
var annotations = []string{v1.AnnotationRecovery, corev1.MirrorPodAnnotationKey, "kubernetes.io/config.hash", annotationLarge}

// maxAnnotationBytes bounds the value of an annotation: a UID, a hash or a word.
const maxAnnotationBytes = 253

// containerOf keeps of a container its name, its mounts and how it is restarted.
func containerOf(pod *corev1.Pod, c corev1.EphemeralContainerCommon) corev1.EphemeralContainerCommon {
	mounts, names := slices.Clone(c.VolumeMounts), podinfo.SubPathNames(pod, c.Name)
	for i := range mounts {
		if m := &mounts[i]; m.SubPath == "" && m.SubPathExpr != "" {
			m.SubPath = names(*m)
		}
	}
	return corev1.EphemeralContainerCommon{
		Name: c.Name, RestartPolicy: c.RestartPolicy, VolumeMounts: mounts, VolumeDevices: c.VolumeDevices,
	}
}

// volumesOf keeps of volumes that the kubelet fills, and of drivers, the kind and the name. Their items and attributes are not read.
func volumesOf(all []corev1.Volume) []corev1.Volume {
	kept := slices.Clone(all)
	for i := range kept {
		switch v := &kept[i]; {
		case v.ConfigMap != nil:
			v.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: v.ConfigMap.LocalObjectReference}
		case v.Secret != nil:
			v.Secret = &corev1.SecretVolumeSource{SecretName: v.Secret.SecretName}
		case v.Projected != nil:
			v.Projected = &corev1.ProjectedVolumeSource{}
		case v.DownwardAPI != nil:
			v.DownwardAPI = &corev1.DownwardAPIVolumeSource{}
		case v.Ephemeral != nil:
			v.Ephemeral = &corev1.EphemeralVolumeSource{}
		case v.CSI != nil:
			v.CSI = &corev1.CSIVolumeSource{Driver: v.CSI.Driver, ReadOnly: v.CSI.ReadOnly}
		case v.FlexVolume != nil:
			v.FlexVolume = &corev1.FlexVolumeSource{Driver: v.FlexVolume.Driver, ReadOnly: v.FlexVolume.ReadOnly}
		}
	}
	return kept
}

func containerStatuses(all []corev1.ContainerStatus) (kept []corev1.ContainerStatus) {
	for _, s := range all {
		kept = append(kept, corev1.ContainerStatus{
			Name: s.Name, ContainerID: s.ContainerID, State: s.State, LastTerminationState: s.LastTerminationState,
			Ready: s.Ready, Started: s.Started, RestartCount: s.RestartCount,
		})
	}
	return kept
}
