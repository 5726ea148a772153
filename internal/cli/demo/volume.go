// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
)

// Names of the pod of the second act, and of its volume.
const (
	volumePodUID    = "0f5b2c9e-6c0d-4f0e-9a35-5a7a5d4a3c11"
	volumePodName   = "trainer-0"
	volumeContainer = "train"
	claimName       = "model"
	volumeHandle    = "vol-1"
	volumePV        = "pvc-model"
	volumeDriver    = "memory.csi.example.com"
	volumeFile      = "state"
)

// demoVolume plays the kubelet, the container runtime and the CSI driver for a pod with one FUSE volume. The file system,
// the mounts, the daemon and the container's process are real.
type demoVolume struct {
	root           string // the kubelet's root directory
	staging, point string // where the driver mounts the volume, and where the pod has it
	data           string // where the container has it
	pod            *corev1.Pod

	daemon, container *child
}

// newDemoVolume makes the directories below dir, and the kubelet's records.
func newDemoVolume(dir string) (*demoVolume, error) {
	v := &demoVolume{root: filepath.Join(dir, "kubelet"), data: filepath.Join(dir, "data")}
	// The pod as the API server would return it.
	started := true
	v.pod = &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: podNamespace, Name: volumePodName, UID: volumePodUID},
		Spec: corev1.PodSpec{
			NodeName: nodeName,
			Containers: []corev1.Container{{
				Name: volumeContainer, Image: "debian:12", VolumeMounts: []corev1.VolumeMount{{Name: claimName, MountPath: v.data}},
			}},
			Volumes: []corev1.Volume{{Name: claimName, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName},
			}}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: volumeContainer, Image: "debian:12", ContainerID: "standin://" + volumeContainer, Ready: true, Started: &started,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
			}},
		},
	}
	node, err := kubelet.Local(v.root)
	if err != nil {
		return nil, err
	}
	v.staging = node.StagingPoints(volumeDriver, volumeHandle, volumePV)[0]
	v.point = node.VolumePoint(kubelet.Volume{PodUID: volumePodUID, Plugin: kubelet.CSIPlugin, Name: volumePV})
	record, err := json.Marshal(kubelet.VolumeRecord{Driver: volumeDriver, Handle: volumeHandle, PersistentVolume: volumePV, Node: nodeName})
	if err != nil {
		return nil, err
	}
	for _, point := range []string{v.staging, v.point} {
		if err := os.MkdirAll(point, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(kubelet.VolumeRecordPath(point), record, 0o600); err != nil {
			return nil, err
		}
	}
	return v, os.MkdirAll(v.data, 0o755)
}

// serve has a daemon mount the file system at the staging path. The first time, the kubelet binds it for the pod.
func (v *demoVolume) serve(ctx context.Context, content string) (err error) {
	first := v.daemon == nil
	if v.daemon, err = startChild(ctx, roleDaemon, v.staging, content); err != nil || !first {
		return err
	}
	return mount.Bind(v.staging, v.point)
}

// read is what the container reads from its volume.
func (v *demoVolume) read() (string, error) {
	name := filepath.Join("/proc", strconv.Itoa(v.container.pid()), "root", v.data, volumeFile)
	content, err := os.ReadFile(name)
	var in *os.PathError
	if errors.As(err, &in) {
		return "", fmt.Errorf("%s %s: %w", in.Op, filepath.Join(v.data, volumeFile), in.Err)
	}
	return strings.TrimSpace(string(content)), err
}

// close ends the processes.
func (v *demoVolume) close() {
	for _, c := range []*child{v.container, v.daemon} {
		if c != nil {
			c.kill()
		}
	}
}

// Pod is the one pod.
func (v *demoVolume) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	if namespace != podNamespace || name != volumePodName {
		return nil, fmt.Errorf("get pod %q: %w", namespace+"/"+name, kubelet.ErrPodNotFound)
	}
	return v.pod.DeepCopy(), nil
}

// PodByUID is the one pod.
func (v *demoVolume) PodByUID(uid string) *corev1.Pod {
	if uid != volumePodUID {
		return nil
	}
	return v.pod
}

// Records lists no record: no container failed to start.
func (v *demoVolume) Records(context.Context, string, string) ([]cri.Container, error) {
	return nil, nil
}

// Remove is for records.
func (v *demoVolume) Remove(context.Context, cri.Container) error { return nil }

// Owner takes the process that has the volume for one of the pod's container: no other has it.
func (v *demoVolume) Owner(context.Context, string) (cri.Owner, error) {
	return cri.Owner{
		ContainerID: "stand-in", Container: volumeContainer, PodUID: volumePodUID, PodNamespace: podNamespace, PodName: volumePodName,
		Mounts: []cri.Mount{{HostPath: v.point, ContainerPath: v.data}},
	}, nil
}
