// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sentinel

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// newGoingFixture has a pod that is to go. Its volume is healthy.
func newGoingFixture(t *testing.T, mode Mode) *volumeFixture {
	t.Helper()
	f := newVolumeFixture(t, mode)
	f.scene.Pod.DeletionTimestamp = &metav1.Time{}
	f.scene.Pod.Spec.Volumes = append(f.scene.Pod.Spec.Volumes, corev1.Volume{Name: "w", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	return f
}

// inEmptyDir makes a directory in the emptyDir of the pod, from which everything is unmounted with the test.
func (f *volumeFixture) inEmptyDir(t *testing.T, name string) string {
	t.Helper()
	point := filepath.Join(f.scene.Node.VolumeDir(string(f.scene.Pod.UID), "kubernetes.io/empty-dir", "w"), name)
	must(t, os.MkdirAll(point, 0o755))
	t.Cleanup(func() {
		for systest.UnmountPath(point, true) == nil {
		}
	})
	return point
}

// checkUnmounted expects one repair, the unmount of the mount at a point. Nothing else has gone.
func (f *volumeFixture) checkUnmounted(t *testing.T, code fault.Code, point string, before map[string]bool) {
	t.Helper()
	if len(f.repaired) != 1 {
		t.Fatalf("repairs: %+v", f.repaired)
	}
	r := f.repaired[0]
	if r.Fault.Code != code || r.Action.Kind != fault.Unmount || r.Action.Mount.Point != point || r.Proof == "" || r.Err != nil {
		t.Errorf("repair %+v", r)
	}
	want := maps.Clone(before)
	maps.DeleteFunc(want, func(m string, _ bool) bool { return isAt(m, point) })
	if after := f.scene.Mounts(); !maps.Equal(after, want) || len(want) != len(before)-1 {
		t.Errorf("mounts: %v, want %v", after, want)
	}
}

// isAt reports whether a mount of a scene is at a point.
func isAt(m, point string) bool { return strings.HasSuffix(m, fmt.Sprintf(" at %q", point)) }

// TestPodThatADeadVolumeKeepsIsFreed: there is no Diagnosis. The staging path is not the pod's, and stays.
func TestPodThatADeadVolumeKeepsIsFreed(t *testing.T) {
	f := newGoingFixture(t, Automatic)
	before := f.scene.Mounts()
	f.scene.Kill()
	f.launch(t)
	f.expectAll(t, `found DisconnectedFUSE in ""`, `repaired DisconnectedFUSE in "": <nil>`)
	f.checkUnmounted(t, fault.DisconnectedFUSE, f.scene.Point, before)
	f.expectNoMore(t)
}

// TestPodThatADeadMountKeepsIsFreed has a FUSE mount inside an emptyDir whose daemon is gone (kubernetes#129550).
func TestPodThatADeadMountKeepsIsFreed(t *testing.T) {
	f := newGoingFixture(t, Automatic)
	point := f.inEmptyDir(t, "build")
	server := kerneltest.StartWith(t, nil, "serve", point, "dir", "content")
	before := f.scene.Mounts()
	server.Kill()
	f.launch(t)
	f.expectAll(t, `found DisconnectedFUSE in ""`, `repaired DisconnectedFUSE in "": <nil>`)
	f.checkUnmounted(t, fault.DisconnectedFUSE, point, before)
	f.expectNoMore(t)
}

// TestPodThatAForeignMountKeepsIsFreed has the bind of a termination log inside an emptyDir (kubernetes#115054).
func TestPodThatAForeignMountKeepsIsFreed(t *testing.T) {
	f := newGoingFixture(t, Automatic)
	point, log := f.inEmptyDir(t, "log"), filepath.Join(f.scene.Node.PodDir(string(f.scene.Pod.UID)), "containers/app")
	must(t, errors.Join(os.MkdirAll(log, 0o755), sys.BindMount(log, point)))
	before := f.scene.Mounts()
	f.launch(t)
	f.expectAll(t, `found StuckTermination in ""`, `repaired StuckTermination in "": <nil>`)
	f.checkUnmounted(t, fault.StuckTermination, point, before)
	f.expectNoMore(t)
}

// TestPodThatIsKeptIsOnlyReported: no policy allows the repair.
func TestPodThatIsKeptIsOnlyReported(t *testing.T) {
	f := newGoingFixture(t, Observe)
	before := f.scene.Mounts()
	f.scene.Kill()
	f.launch(t)
	f.expectAll(t, `found DisconnectedFUSE in ""`)
	f.expectNoMore(t)
	if after := f.scene.Mounts(); !maps.Equal(after, before) {
		t.Errorf("mounts: %v, want %v", after, before)
	}
}

// TestDeadMountOfTheNodeStays: a pod with a hostPath there is to go, which the mount does not prevent. Without it, the next pod writes to
// the node's own disk. A Diagnosis may unmount it.
func TestDeadMountOfTheNodeStays(t *testing.T) {
	f := newGoingFixture(t, Automatic)
	point := filepath.Join(t.TempDir(), "data")
	must(t, os.Mkdir(point, 0o755))
	t.Cleanup(func() { _ = systest.UnmountPath(point, true) })
	server := kerneltest.StartWith(t, nil, "serve", point, "dir", "content")
	f.scene.Pod.Spec.Volumes = append(f.scene.Pod.Spec.Volumes, corev1.Volume{
		Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: point}},
	})
	server.Kill()
	f.launch(t)
	f.expectAll(t, `found DisconnectedFUSE in ""`)
	f.expectNoMore(t)
	if !slices.ContainsFunc(slices.Collect(maps.Keys(f.scene.Mounts())), func(m string) bool { return isAt(m, point) }) {
		t.Error("the mount has gone")
	}
}
