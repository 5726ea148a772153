// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/bounded"
)

// unknownSubPath stands for a subPath of which only the place of its bind is known. No container has such a variable, so
// its value is concluded from the bind itself.
const unknownSubPath = "$(KUBEDIAG_UNKNOWN)"

// podFromRuntime makes a pod from the kubelet's requests to the runtime, as far as it follows from them: containers, the
// mounts of volumes and subPaths, and how the containers are. All the rest of its spec is not known and left empty.
func (p *nodePods) podFromRuntime(ctx context.Context, s cri.Sandbox) (*corev1.Pod, error) {
	containers, err := p.containers(ctx, s.PodUID)
	if err != nil {
		return nil, err
	}
	plugins, err := p.pluginByVolume(ctx, s.PodUID)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.PodUID)},
		Spec:       corev1.PodSpec{NodeName: p.name},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	volumes := map[string]bool{}
	for _, c := range containers {
		spec, status := corev1.Container{Name: c.Name}, containerStatusOf(c)
		for _, m := range c.Mounts {
			name, index, subPath := p.mountedVolume(s.PodUID, c.Name, m.HostPath)
			if name == "" {
				continue
			}
			mount := corev1.VolumeMount{Name: name, MountPath: m.ContainerPath, ReadOnly: m.ReadOnly}
			if subPath {
				mount.SubPathExpr = unknownSubPath
			}
			spec.VolumeMounts = insertAt(spec.VolumeMounts, index, mount)
			if !volumes[name] {
				volumes[name] = true
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: volumeSourceOf(plugins[name], name)})
			}
		}
		// A container that has succeeded may be an init container, or may not be started again: kubediag does not wait for
		// it.
		if ended := status.State.Terminated; ended != nil && ended.ExitCode == 0 {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, spec)
			pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, status)
			continue
		}
		pod.Spec.Containers = append(pod.Spec.Containers, spec)
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
	}
	return pod, nil
}

// maxVolumeMounts bounds the place of a subPath in a container's list of mounts.
const maxVolumeMounts = 10_000

// insertAt puts a mount at its place in the list; below 0 it goes to the end.
func insertAt(mounts []corev1.VolumeMount, index int, m corev1.VolumeMount) []corev1.VolumeMount {
	if index < 0 {
		return append(mounts, m)
	}
	for len(mounts) <= index {
		mounts = append(mounts, corev1.VolumeMount{})
	}
	mounts[index] = m
	return mounts
}

// mountedVolume is the volume of this pod that a path of the host is of, by how the kubelet builds such paths. Empty:
// of none.
func (p *nodePods) mountedVolume(uid, container, hostPath string) (volume string, index int, subPath bool) {
	hostPath = p.node.OwnPath(hostPath, uid)
	if s, ok := p.node.ParseSubPath(hostPath); ok && s.PodUID == uid && s.Container == container && s.Index <= maxVolumeMounts {
		return s.Volume, s.Index, true
	}
	if v, ok := p.node.ParseVolume(hostPath); ok && v.PodUID == uid {
		return v.Name, -1, false
	}
	return "", -1, false
}

// pluginByVolume are the plugins of a pod's volumes by the names of these, as the kubelet's directories have it.
func (p *nodePods) pluginByVolume(ctx context.Context, uid string) (map[string]string, error) {
	type found = map[string]string
	ask := func(ctx context.Context) (found, error) {
		all := found{}
		err := p.node.Do(ctx, func() error {
			dir := path.Join(p.node.PodDir(uid), "volumes")
			kinds, err := os.ReadDir(dir)
			for _, kind := range kinds {
				names, failed := os.ReadDir(path.Join(dir, kind.Name()))
				for _, name := range names {
					all[name.Name()] = strings.ReplaceAll(kind.Name(), "~", "/")
				}
				err = cmp.Or(err, failed)
			}
			return err
		})
		return all, err
	}
	all, err := callWithin(ctx, pathTimeout, ask)
	if errors.Is(err, os.ErrNotExist) { // it has no volumes, or they are being removed
		err = nil
	}
	if errors.Is(err, bounded.ErrLeft) {
		err = context.DeadlineExceeded
	}
	return all, err
}

// volumeSourceOf is as much of a volume's source as its plugin says.
func volumeSourceOf(plugin, name string) (s corev1.VolumeSource) {
	reference := corev1.LocalObjectReference{Name: name}
	switch plugin {
	case "kubernetes.io/configmap":
		s.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: reference}
	case "kubernetes.io/secret":
		s.Secret = &corev1.SecretVolumeSource{SecretName: name}
	case "kubernetes.io/projected":
		s.Projected = &corev1.ProjectedVolumeSource{}
	case "kubernetes.io/downward-api":
		s.DownwardAPI = &corev1.DownwardAPIVolumeSource{}
	case "kubernetes.io/empty-dir":
		s.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	return s
}

// containerStatusOf is how the runtime says that a container is.
func containerStatusOf(c cri.PodContainer) corev1.ContainerStatus {
	status := corev1.ContainerStatus{Name: c.Name, ContainerID: "cri://" + c.ID}
	switch {
	case c.Exited:
		ended := &corev1.ContainerStateTerminated{
			ExitCode: c.ExitCode, Reason: c.Reason, StartedAt: metav1.NewTime(c.Started), FinishedAt: metav1.NewTime(c.Finished), ContainerID: status.ContainerID,
		}
		if c.NeverStarted() {
			ended.Reason = "StartError"
		}
		status.State.Terminated = ended
	case c.Starting():
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	default:
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.Started)}
	}
	return status
}

var _ kubelet.Pods = (*nodePods)(nil)
