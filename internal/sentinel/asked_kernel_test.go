// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sentinel

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// TestBindsOfFUSE that are stale before the sentinel starts, or become so later, on a kubelet that renews binds of local file
// systems alone. No event reports the later ones: they are found when their pod is deleted.
func TestBindsOfFUSE(t *testing.T) {
	const found, repaired = "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>"
	for name, c := range map[string]struct {
		mode   Mode
		answer sys.Errno
		goes   bool
		later  bool
		runs   bool // a process of the pod, which ends after the fault was found
		want   []string
	}{
		"observed":     {mode: Observe, answer: sys.ENOENT, want: []string{found}},
		"forgotten":    {mode: Automatic, answer: sys.ENOENT, want: []string{found, repaired}},
		"replaced":     {mode: Automatic, want: []string{found, repaired}},
		"the pod goes": {mode: Automatic, answer: sys.ENOENT, goes: true, want: []string{found, repaired}},
		"the pod goes, and a process is in its control group": {mode: Automatic, answer: sys.ENOENT, goes: true, runs: true, want: []string{found}},
		"stale later": {mode: Automatic, answer: sys.ENOENT, goes: true, later: true, want: []string{found, repaired}},
	} {
		t.Run(name, func(t *testing.T) {
			v := volumetest.New(t)
			v.Scene.Renews(true)
			v.Inspector.Kubelet = v.Scene.Node
			must(t, os.Mkdir(filepath.Join(v.Point, "sub"), 0o755))
			f := &bindFixture{Scene: v.Scene, pod: v.Pod, notifications: make(chan string, 100), pods: map[string]*corev1.Pod{}}
			f.pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/sub", SubPath: "sub"}}
			end := func() {}
			if c.runs { // processes are looked for on the whole machine, so the pod is of no other test
				f.pod.UID = types.UID(fmt.Sprintf("5f0e5d0c-3a7c-4a53-9f0e-%012d", os.Getpid()))
				end = kubelettest.PodProcess(t, string(f.pod.UID))
			}
			f.point = v.Scene.Point(f.pod, volumetest.Volume, "app", 0)
			f.Bind(filepath.Join(v.Point, "sub"), f.point)
			t.Cleanup(func() { _ = systest.UnmountPath(f.point, true) })
			breakBind := func() {
				v.Delete("sub", c.answer, true)
				if c.goes {
					f.pod = f.pod.DeepCopy()
					f.pod.DeletionTimestamp = &metav1.Time{Time: time.Now()}
				}
				f.put(f.pod)
			}
			f.put(f.pod)
			if !c.later {
				breakBind()
			}
			f.sentinel = &Sentinel{
				Mode: c.mode, Guard: always{c.mode}, Kubelet: v.Scene.Node, Pods: f, Observer: f, Binds: subpath.Sources{Prober: v.Inspector.Prober},
			}
			f.start(t)
			if c.later {
				f.waitFor(t, "for the first inspection", func(s Status) bool { return s.Binds == 1 })
				breakBind()
			}
			f.expect(t, c.want...)
			if bound := f.mounted(t); bound != (c.mode == Observe || c.runs) {
				t.Errorf("bound: %v", bound)
			}
			if end(); c.runs {
				f.expect(t, repaired)
			}
			f.expectNoMore(t)
		})
	}
}
