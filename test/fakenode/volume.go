// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fakenode

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/linux/mount"
)

// Layout has the volumes and binds of each pod of a crowd.
type Layout struct {
	// Namespace is that of the pods; empty: default.
	Namespace string
	// Volumes is how many ConfigMap volumes it has, Binds how many files of each its container mounts by subPath.
	Volumes, Binds int
}

// Volume is a ConfigMap volume of a pod on the node, written as the kubelet writes it.
type Volume struct {
	// Points are where the subPaths are bound.
	Points []string

	dir      string
	versions int
}

// AddPods creates n pods that run, name-0 and so on, with all subPaths bound, and gives their volumes.
func (s *Node) AddPods(t testing.TB, name string, n int, l Layout) []*Volume {
	t.Helper()
	var all []*Volume
	for i := range n {
		pod := l.pod(fmt.Sprint(name, "-", i))
		s.play(t, pod)
		all = append(all, s.volumes(pod, l)...)
	}
	for _, v := range all {
		must(t, v.create())
	}
	return all
}

// AddFolder creates a pod that runs and has a directory of an emptyDir volume by subPath. It gives the directory of the volume.
func (s *Node) AddFolder(t testing.TB, name string) string {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{
		NodeName: NodeName,
		Containers: []corev1.Container{{Name: "app", Image: "debian:12", VolumeMounts: []corev1.VolumeMount{
			{Name: "scratch", SubPath: "part", MountPath: "/part"},
		}}},
		Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	}}
	s.play(t, pod)
	dir := filepath.Join(s.root, "pods", string(pod.UID))
	volume, point := filepath.Join(dir, "volumes/kubernetes.io~empty-dir/scratch"), filepath.Join(dir, "volume-subpaths/scratch/app/0")
	must(t, os.MkdirAll(filepath.Join(volume, "part"), 0o755))
	must(t, os.MkdirAll(point, 0o755))
	must(t, mount.Bind(filepath.Join(volume, "part"), point))
	return volume
}

func (l Layout) pod(name string) *corev1.Pod {
	app := corev1.Container{Name: "app", Image: "debian:12"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(l.Namespace, "default"), Name: name}, Spec: corev1.PodSpec{NodeName: NodeName}}
	for i := range l.Volumes {
		volume := fmt.Sprint("conf-", i)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: volume}},
		}})
		for j := range l.Binds {
			app.VolumeMounts = append(app.VolumeMounts, corev1.VolumeMount{
				Name: volume, SubPath: key(j), MountPath: filepath.Join("/etc", volume, key(j)),
			})
		}
	}
	pod.Spec.Containers = []corev1.Container{app}
	return pod
}

func (s *Node) volumes(pod *corev1.Pod, l Layout) []*Volume {
	var all []*Volume
	dir := filepath.Join(s.root, "pods", string(pod.UID))
	for i, volume := range pod.Spec.Volumes {
		v := &Volume{dir: filepath.Join(dir, "volumes/kubernetes.io~configmap", volume.Name)}
		for j := range l.Binds {
			v.Points = append(v.Points, filepath.Join(dir, "volume-subpaths", volume.Name, "app", fmt.Sprint(i*l.Binds+j)))
		}
		all = append(all, v)
	}
	return all
}

func key(i int) string { return fmt.Sprint("key-", i) }

// version is the name of the directory with the nth content.
func version(n int) string { return fmt.Sprint("..2021_06_02_06_01_21.", n) }

func (v *Volume) create() error {
	if err := os.MkdirAll(v.dir, 0o755); err != nil {
		return err
	}
	for i := range v.Points {
		if err := os.Symlink("..data/"+key(i), filepath.Join(v.dir, key(i))); err != nil {
			return err
		}
	}
	return errors.Join(v.Prepare(), v.Renew(), v.Bind())
}

// Prepare writes the next content beside the present one, which stays the one that is seen.
func (v *Volume) Prepare() error {
	v.versions++
	dir := filepath.Join(v.dir, version(v.versions))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for i := range v.Points {
		if err := os.WriteFile(filepath.Join(dir, key(i)), []byte(version(v.versions)), 0o644); err != nil {
			return err
		}
	}
	return os.Symlink(version(v.versions), filepath.Join(v.dir, "..data_tmp"))
}

// Renew puts the prepared files in place, with one rename, and removes the files that were there before: it breaks the
// binds.
func (v *Volume) Renew() error {
	if err := os.Rename(filepath.Join(v.dir, "..data_tmp"), filepath.Join(v.dir, "..data")); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(v.dir, version(v.versions-1)))
}

// inodes are the numbers of the files that the subPaths name now.
func (v *Volume) inodes(t testing.TB) []uint64 {
	t.Helper()
	var all []uint64
	for i := range v.Points {
		info, err := os.Stat(filepath.Join(v.dir, key(i)))
		must(t, err)
		all = append(all, info.Sys().(*syscall.Stat_t).Ino)
	}
	return all
}

// Current is an error where another file is bound than the subPaths name now.
func (v *Volume) Current() error {
	for i, point := range v.Points {
		bound, err := os.Stat(point)
		if err != nil {
			return err
		}
		named, err := os.Stat(filepath.Join(v.dir, key(i)))
		if err != nil {
			return err
		}
		if !os.SameFile(bound, named) {
			return fmt.Errorf("what is bound at %q is not %q", point, filepath.Join(v.dir, key(i)))
		}
	}
	return nil
}

// Bind binds the files that the subPaths name now, where no file is bound, as the kubelet does for the start of a
// container.
func (v *Volume) Bind() error {
	if err := os.MkdirAll(filepath.Dir(v.Points[0]), 0o750); err != nil {
		return err
	}
	for i, point := range v.Points {
		if _, err := mount.Inspect(point); err == nil {
			continue
		}
		if err := os.WriteFile(point, nil, 0o640); err != nil {
			return err
		}
		if err := mount.Bind(filepath.Join(v.dir, version(v.versions), key(i)), point); err != nil {
			return err
		}
	}
	return nil
}
