// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// oneAnswers are the states. The pod default/web has a CSI volume on FUSE, and is well otherwise.
var oneAnswers = map[string]oneAnswer{
	"well":                            {make: func(_ *testing.T, w *brokenNode) string { return w.Point }},
	"daemon killed":                   {make: killed, code: fault.DisconnectedFUSE, heal: fault.HealDriver},
	"daemon killed and mounted again": {make: remounted, code: fault.DisconnectedFUSE, heal: fault.HealSafe},
	"daemon stopped":                  {make: stopped, code: fault.HungMount, heal: fault.HealPerson},
	"directory forgotten":             {make: failing(sys.ESTALE), code: fault.StaleFileHandle, heal: fault.HealDriver},
	"EACCES":                          {make: failing(syscall.EACCES), unjudged: true},
	"EPERM":                           {make: failing(syscall.EPERM), unjudged: true},

	"subPath that is current":            {make: bound(nil)},
	"subPath replaced":                   {make: bound(updated), code: fault.StaleSubPath, heal: fault.HealSafe},
	"subPath without its key":            {make: bound(emptied), code: fault.MissingBindSource, heal: fault.HealPerson},
	"subPath of FUSE":                    {make: shared(nil)},
	"subPath of FUSE deleted":            {make: shared(deleted(0, false)), code: fault.StaleSubPath, heal: fault.HealSafe},
	"subPath of FUSE deleted and made":   {make: shared(deleted(0, true)), code: fault.StaleSubPath, heal: fault.HealSafe},
	"subPath of FUSE stale":              {make: shared(deleted(sys.ESTALE, false)), code: fault.StaleSubPath, heal: fault.HealSafe},
	"subPath of FUSE that does not know": {make: shared(deleted(sys.ENOENT, true)), code: fault.StaleSubPath, heal: fault.HealSafe},

	"hostPath that is missing":        {make: missingHostPath, code: fault.MissingBindSource, heal: fault.HealPerson},
	"hostPath of another kind":        {make: otherKind, code: fault.SourceTypeMismatch, heal: fault.HealPerson},
	"ConfigMap onto a file":           {make: ontoFile, code: fault.SourceTypeMismatch, heal: fault.HealPerson},
	"hostPath on a dead FUSE mount":   {make: deadHostPath, code: fault.DisconnectedFUSE, heal: fault.HealPerson},
	"emptyDir with a dead FUSE mount": {make: deadInEmptyDir, code: fault.DisconnectedFUSE, heal: fault.HealPerson},

	"directory deleted":                {make: deletedDirectory(false), code: fault.DeletedVolumeSource, heal: fault.HealPerson},
	"directory deleted and made again": {make: deletedDirectory(true), code: fault.DeletedVolumeSource, heal: fault.HealSafe},
	"nothing mounted, nothing bound":   {make: unmounted},

	"disk":                              {make: onDisk(nil)},
	"disk that became read-only":        {make: onDisk(disturbed), unjudged: true},
	"disk that is frozen":               {make: onDisk(frozen), unjudged: true},
	"disk that is shut down":            {make: onDisk(shutDown), code: fault.VolumeIOError, heal: fault.HealPerson},
	"subPath that is the whole volume":  {make: wholeVolume, code: fault.WrongSubPath, heal: fault.HealPerson},
	"subPath of FUSE, and its pod goes": {make: going(shared(deleted(sys.ESTALE, false))), code: fault.StaleSubPath, heal: fault.HealSafe},
	"daemon killed, and its pod goes":   {make: going(killed), code: fault.DisconnectedFUSE, heal: fault.HealSafe},
}

func init() {
	for _, errno := range []sys.Errno{
		sys.EIO, syscall.EHOSTDOWN, syscall.ETIMEDOUT, syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.EAGAIN, syscall.ENODEV,
		syscall.ENXIO, syscall.EUCLEAN, syscall.EREMOTEIO, syscall.ENETUNREACH, syscall.EINVAL, syscall.EBADF, syscall.ENOTDIR,
	} {
		oneAnswers[errno.Error()] = oneAnswer{make: failing(errno), code: fault.VolumeIOError, heal: fault.HealPerson}
	}
}

func killed(_ *testing.T, w *brokenNode) string {
	w.Kill()
	return w.Point
}

func remounted(_ *testing.T, w *brokenNode) string {
	w.Kill()
	w.Remount("new")
	return w.Point
}

func stopped(_ *testing.T, w *brokenNode) string {
	w.Stop()
	return w.Point
}

// failing has the daemon of the volume answer with an error.
func failing(errno sys.Errno) func(*testing.T, *brokenNode) string {
	return func(_ *testing.T, w *brokenNode) string {
		w.Fail(errno)
		return w.Point
	}
}

// bound has container sidecar have one key of a ConfigMap, which changes then.
func bound(change func(w *brokenNode)) func(*testing.T, *brokenNode) string {
	return func(_ *testing.T, w *brokenNode) string {
		w.Pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/x", SubPath: "key"}}
		version := w.Update(w.Pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "one"})
		point := w.Scene.Scene.Point(w.Pod, "configmap", "sidecar", 0)
		w.Bind(filepath.Join(version, "key"), point)
		if change != nil {
			change(w)
		}
		return point
	}
}

func updated(w *brokenNode) {
	w.Update(w.Pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
}

func emptied(w *brokenNode) {
	w.Update(w.Pod, kubelettest.ConfigMap, "configmap", map[string]string{"other": ""})
	_ = os.Remove(filepath.Join(w.Volume(w.Pod, kubelettest.ConfigMap, "configmap"), "key")) // as the kubelet does
}

// shared has container app have the directory "sub" of the volume, which changes then.
func shared(change func(w *brokenNode)) func(*testing.T, *brokenNode) string {
	return func(t *testing.T, w *brokenNode) string {
		w.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/sub", SubPath: "sub"}}
		must(t, os.Mkdir(filepath.Join(w.Point, "sub"), 0o755))
		point := w.Scene.Scene.Point(w.Pod, volumetest.Volume, "app", 0)
		w.Bind(filepath.Join(w.Point, "sub"), point)
		t.Cleanup(func() { _ = systest.UnmountPath(point, true) })
		if change != nil {
			change(w)
		}
		return point
	}
}

func deleted(answer sys.Errno, again bool) func(w *brokenNode) {
	return func(w *brokenNode) { w.Delete("sub", answer, again) }
}

// onHost has container sidecar have a path of the host, and wait.
func onHost(w *brokenNode, path string, kind corev1.HostPathType) {
	for i := range w.Pod.Spec.Volumes {
		if v := &w.Pod.Spec.Volumes[i]; v.HostPath != nil {
			v.HostPath.Path, v.HostPath.Type = path, &kind
		}
	}
	w.Pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/host"}}
}

func missingHostPath(_ *testing.T, w *brokenNode) string {
	onHost(w, filepath.Join(w.Root, "none"), corev1.HostPathDirectory)
	w.Pod.Status.ContainerStatuses[1] = kubelettest.Failing("sidecar", "")
	return ""
}

func otherKind(t *testing.T, w *brokenNode) string {
	file := filepath.Join(w.Root, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	onHost(w, file, corev1.HostPathDirectory)
	w.Pod.Status.ContainerStatuses[1] = kubelettest.Failing("sidecar", "")
	return ""
}

func ontoFile(_ *testing.T, w *brokenNode) string {
	source := w.Volume(w.Pod, kubelettest.ConfigMap, "configmap")
	w.Pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/etc/config.toml"}}
	w.Pod.Status.ContainerStatuses[1] = kubelettest.Failing("sidecar", fmt.Sprintf("failed to create shim task: OCI runtime create failed: runc "+
		"create failed: unable to start container process: error during container init: error mounting %q to rootfs at \"/etc/config.toml\": create "+
		"mountpoint for /etc/config.toml mount: not a directory: unknown: Are you trying to mount a directory onto a file (or vice-versa)? Check if "+
		"the specified host path exists and is the expected type", source))
	return ""
}

// deadMount mounts a FUSE file system at a directory, and ends its daemon.
func deadMount(t *testing.T, dir string) {
	must(t, os.MkdirAll(dir, 0o755))
	kerneltest.FUSE(t, dir).Kill()
	t.Cleanup(func() { _ = systest.UnmountPath(dir, true) })
}

func deadHostPath(t *testing.T, w *brokenNode) string {
	dir := filepath.Join(w.Root, "onhost")
	deadMount(t, dir)
	onHost(w, dir, corev1.HostPathDirectory)
	return dir
}

func deadInEmptyDir(t *testing.T, w *brokenNode) string {
	dir := filepath.Join(w.Volume(w.Pod, kubelettest.EmptyDir, "empty"), "build")
	deadMount(t, dir)
	return dir
}

// deletedDirectory has another client delete the directory of the volume, and make it again if again is true.
func deletedDirectory(again bool) func(*testing.T, *brokenNode) string {
	return func(t *testing.T, w *brokenNode) string {
		dir := filepath.Join(w.Staging, w.Dir)
		w.mountVolume(t, w.Dir, func() {
			must(t, errors.Join(sys.NewMount("none", w.Staging, "tmpfs", ""), os.MkdirAll(dir, 0o755)))
		})
		must(t, os.RemoveAll(dir))
		if again {
			must(t, os.MkdirAll(dir, 0o755))
		}
		return w.Point
	}
}

// unmounted is a pod that waits for its volume.
func unmounted(t *testing.T, w *brokenNode) string {
	must(t, systest.UnmountPath(w.Point, true))
	w.Pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	return ""
}

// onDisk has the volume be a directory of ext4 on a loop device, to which change happens then.
func onDisk(change func(t *testing.T, w *brokenNode, device string)) func(*testing.T, *brokenNode) string {
	return func(t *testing.T, w *brokenNode) string {
		device := newExt4(t)
		t.Cleanup(func() { _ = errors.Join(systest.UnmountPath(w.Point, true), systest.UnmountPath(w.Staging, true)) })
		w.mountVolume(t, w.Dir, func() {
			tool(t, "mount", "-o", "errors=remount-ro", device, w.Staging)
			must(t, os.MkdirAll(filepath.Join(w.Staging, w.Dir), 0o755))
		})
		if change != nil {
			change(t, w, device)
		}
		return w.Point
	}
}

func disturbed(t *testing.T, _ *brokenNode, device string) {
	must(t, os.WriteFile("/sys/fs/ext4/"+filepath.Base(device)+"/trigger_fs_error", []byte("x"), 0))
}

func frozen(t *testing.T, w *brokenNode, _ string) {
	tool(t, "fsfreeze", "-f", w.Staging)
	t.Cleanup(func() { tool(t, "fsfreeze", "-u", w.Staging) })
}

func shutDown(t *testing.T, w *brokenNode, _ string) { must(t, systest.ShutDown(w.Staging)) }

// wholeVolume has container app have the volume in the place of a directory of it. A path alone does not show that.
func wholeVolume(t *testing.T, w *brokenNode) string {
	w.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/sub", SubPath: "sub"}}
	must(t, os.Mkdir(filepath.Join(w.Point, "sub"), 0o755))
	point := w.Scene.Scene.Point(w.Pod, volumetest.Volume, "app", 0)
	w.Bind(w.Point, point)
	t.Cleanup(func() { _ = systest.UnmountPath(point, true) })
	return ""
}

// going has the pod be deleted an hour before.
func going(state func(*testing.T, *brokenNode) string) func(*testing.T, *brokenNode) string {
	return func(t *testing.T, w *brokenNode) string {
		w.Pod.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Hour)}
		return state(t, w)
	}
}
