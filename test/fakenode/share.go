// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fakenode

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
)

// shareDriver is the CSI driver of shares.
const shareDriver = "stage.csi.example.com"

// Share is a volume of a CSI driver that several pods have: a FUSE file system that a daemon serves at the staging path,
// whose directory is bound where the kubelet keeps it for each pod, with the kubelet's records of both.
type Share struct {
	// Pods have it, and Points are where the kubelet keeps it for them, in the same order.
	Pods   []*corev1.Pod
	Points []string
	// Inside are where it is seen in the pods' containers, through their root directories.
	Inside []string
	// Groups are the directories of the containers' cgroups.
	Groups []string

	t             testing.TB // of AddShares: daemons outlive a part of it
	name, staging string
	server        *kerneltest.Actor
}

// Shares has the pods and the volumes of AddShares. Each pod and each volume has at least one of the other.
type Shares struct {
	Name                   string
	Volumes, Pods, Servers int // Servers are processes; volumes are dealt out to them
}

// AddShares stages the volumes, and creates pods that run, with a container each that has the pod's volumes at the paths
// of At.
func (s *Node) AddShares(t testing.TB, l Shares) []*Share {
	t.Helper()
	if s.runtime == nil {
		s.runtime = startRuntime(t)
	}
	shares := make([]*Share, l.Volumes)
	served := make([][]*Share, l.Servers)
	for i := range shares {
		shares[i] = s.newShare(t, fmt.Sprint(l.Name, "-", i))
		served[i%l.Servers] = append(served[i%l.Servers], shares[i])
	}
	for _, all := range served {
		startServer("first", all...)
	}
	for i := range l.Pods {
		var own []*Share
		if l.Volumes > 0 {
			own = append(own, shares[i%l.Volumes])
		}
		for j := i + l.Pods; j < l.Volumes; j += l.Pods {
			own = append(own, shares[j])
		}
		s.addPod(t, fmt.Sprint(l.Name, "-", i), own)
	}
	return shares
}

func (s *Node) newShare(t testing.TB, name string) *Share {
	sum := sha256.Sum256([]byte("handle-" + name))
	v := &Share{t: t, name: name, staging: filepath.Join(s.root, "plugins/kubernetes.io/csi", shareDriver, hex.EncodeToString(sum[:]), "globalmount")}
	v.place(t, v.staging)
	return v
}

// place makes the directory that the volume is to be mounted at, and the kubelet's record beside it.
func (v *Share) place(t testing.TB, point string) {
	t.Helper()
	must(t, os.MkdirAll(point, 0o750))
	record, err := json.Marshal(map[string]string{"driverName": shareDriver, "volumeHandle": "handle-" + v.name, "specVolID": v.name, "nodeName": NodeName})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(filepath.Dir(point), "vol_data.json"), record, 0o600))
}

// addPod creates a pod, binds its volumes and starts its container.
func (s *Node) addPod(t testing.TB, name string, volumes []*Share) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: NodeName}}
	app := corev1.Container{Name: "app", Image: "debian:12"}
	for i, v := range volumes {
		app.VolumeMounts = append(app.VolumeMounts, corev1.VolumeMount{Name: v.name, MountPath: At(i)})
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: v.name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.name},
		}})
	}
	pod.Spec.Containers = []corev1.Container{app}
	s.play(t, pod)
	status := &runtimeapi.ContainerStatus{Labels: map[string]string{
		"io.kubernetes.container.name": app.Name, "io.kubernetes.pod.name": pod.Name,
		"io.kubernetes.pod.namespace": pod.Namespace, "io.kubernetes.pod.uid": string(pod.UID),
	}}
	for i, v := range volumes {
		point := filepath.Join(s.root, "pods", string(pod.UID), "volumes/kubernetes.io~csi", v.name, "mount")
		v.place(t, point)
		must(t, mount.Bind(filepath.Join(v.staging, ShareDir), point))
		v.Pods, v.Points = append(v.Pods, pod), append(v.Points, point)
		status.Mounts = append(status.Mounts, &runtimeapi.Mount{HostPath: point, ContainerPath: At(i)})
	}
	container, group := s.runtime.run(t, status)
	for i, v := range volumes {
		v.Groups = append(v.Groups, group)
		v.Inside = append(v.Inside, filepath.Join("/proc", strconv.Itoa(container.PID), "root", At(i)))
	}
}

// startServer starts a daemon for all of the shares, and returns when it mounted the first.
func startServer(content string, all ...*Share) time.Time {
	if len(all) == 0 {
		return time.Time{}
	}
	t := all[0].t
	t.Helper()
	args := []string{content}
	for _, v := range all {
		args = append(args, v.staging)
	}
	server := kerneltest.StartWith(t, nil, serverRole, args...)
	t.Cleanup(server.Kill) // also if it is stopped
	for _, v := range all {
		v.server = server
	}
	at, err := strconv.ParseInt(server.Answer, 10, 64)
	must(t, err)
	return time.Unix(0, at)
}

// Kill ends the daemon, as a crash does. It returns before the process is gone; Remount waits for that.
func (v *Share) Kill(t testing.TB) {
	t.Helper()
	must(t, syscall.Kill(v.server.PID, syscall.SIGKILL))
}

// Stop has the daemon answer no more, until Continue.
func (v *Share) Stop(t testing.TB) {
	t.Helper()
	must(t, syscall.Kill(v.server.PID, syscall.SIGSTOP))
}

// Continue has the daemon answer again.
func (v *Share) Continue(t testing.TB) {
	t.Helper()
	must(t, syscall.Kill(v.server.PID, syscall.SIGCONT))
}

// Remount has the driver do what it does after its daemon has died, for the whole node alone: the file of the volume
// says content then. It returns when that was mounted.
func (v *Share) Remount(t testing.TB, content string) time.Time {
	t.Helper()
	v.server.Kill()
	must(t, syscall.Unmount(v.staging, syscall.MNT_DETACH))
	return startServer(content, v)
}

// Read is the content of the volume at one of Points or Inside.
func (*Share) Read(at string) (string, error) {
	text, err := os.ReadFile(filepath.Join(at, shareFile))
	return string(text), err
}
