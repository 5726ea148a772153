// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor/processortest"
)

// onNoDevice mount file systems that are on no device.
var onNoDevice = map[string]func(t *testing.T, dir string){
	"tmpfs": func(t *testing.T, dir string) { must(t, sys.NewMount("memory", dir, "tmpfs", "")) },
	"fuse":  func(t *testing.T, dir string) { kerneltest.FUSE(t, dir) },
	"overlay": func(t *testing.T, dir string) {
		must(t, sys.NewMount("layers", dir, "overlay", "lowerdir="+t.TempDir()+":"+t.TempDir()))
	},
}

func newFileSystemScene(t *testing.T, fsType, mode string, args ...string) *heldScene {
	t.Helper()
	s := devicetest.NewOnNoDevice(t, func(dir string) { onNoDevice[fsType](t, dir) })
	return newReleaseSceneOn(t, s, mode, args...)
}

// mountAgain has the kubelet mount the file system of the exporter's copy.
func (w *heldScene) mountAgain(t *testing.T) {
	t.Helper()
	ns, err := mountns.Of(w.exporter.PID)
	must(t, err)
	var tree *sys.FD
	must(t, ns.Do(func() error {
		at, err := sys.Lookup("/host" + w.Global)
		if err != nil {
			return err
		}
		defer at.Close()
		tree, err = sys.CloneTree(at)
		return err
	}))
	defer tree.Close()
	must(t, sys.OnThread(func() error {
		at, err := sys.Lookup(w.Global)
		if err != nil {
			return err
		}
		defer at.Close()
		return sys.Attach(tree, at, false)
	}))
}

// specs are pods by UID.
type specs map[string]*corev1.Pod

func (s specs) PodByUID(uid string) *corev1.Pod { return s[uid] }

func podDeleted(ago time.Duration) specs {
	return specs{devicetest.PodUID: {ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "web", DeletionTimestamp: &metav1.Time{Time: time.Now().Add(-ago)},
	}}}
}

// TestFileSystemsThatStay plans nothing while the file system is in use, or its pod need not be gone yet.
func TestFileSystemsThatStay(t *testing.T) {
	for name, c := range map[string]struct {
		mode []string
		set  func(t *testing.T, w *heldScene)
		why  string // empty: it is released
	}{
		"file of the exporter": {[]string{"user", "global"}, nil, "is no mount"},
		"pod that runs": {[]string{"exporter"}, func(_ *testing.T, w *heldScene) {
			w.Runtime.Ready = []cri.Sandbox{{PodUID: devicetest.PodUID, Ready: true}}
		}, "is alive"},
		"pod that is not deleted": {[]string{"exporter"}, func(_ *testing.T, w *heldScene) {
			w.Inspector.Specs = specs{devicetest.PodUID: {ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}}
		}, "pod shop/web, which it was mounted for, is not being deleted"},
		"pod that is being deleted": {[]string{"exporter"}, func(_ *testing.T, w *heldScene) { w.Inspector.Specs = podDeleted(0) }, "the kubelet is taking it down"},
		"pod whose time is over":    {[]string{"exporter"}, func(_ *testing.T, w *heldScene) { w.Inspector.Specs = podDeleted(time.Hour) }, ""},
		"pod that has ended": {[]string{"exporter"}, func(_ *testing.T, w *heldScene) {
			w.Inspector.Specs = specs{devicetest.PodUID: {Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}}
		}, ""},
		"volume of the container": {[]string{"volume", "global"}, nil, "is no copy of such a mount"},
		"peers":                   {[]string{"shared"}, nil, "an unmount would spread"},
		"the kubelet's again": {[]string{"exporter"}, func(t *testing.T, w *heldScene) {
			w.mountAgain(t)
		}, "no pod is seen to use it"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFileSystemScene(t, "tmpfs", c.mode[0], c.mode[1:]...)
			if c.set != nil {
				c.set(t, w)
			}
			plan := w.planRelease(t)
			if refused := plan.NotApplicable != ""; refused != (c.why != "") || !strings.Contains(plan.NotApplicable, c.why) || refused != (len(plan.Actions) == 0) {
				t.Errorf("plan %q, %q; want %q", processortest.Targets(plan), plan.NotApplicable, c.why)
			}
		})
	}
}

// TestUnmountIsCheckedAgain has the kubelet mount the file system again after the plan: nothing is unmounted.
func TestUnmountIsCheckedAgain(t *testing.T) {
	w := newFileSystemScene(t, "tmpfs", "exporter")
	plan := w.planRelease(t)
	w.mountAgain(t)
	before := w.MountsOf(w.exporter.PID)
	for _, a := range plan.Actions {
		if _, err := w.healer.Apply(t.Context(), w.request, a); err == nil || !strings.Contains(err.Error(), "nothing was touched") {
			t.Errorf("%s: %v", a.Target, err)
		}
	}
	if diff := cmp.Diff(before, w.MountsOf(w.exporter.PID)); diff != "" {
		t.Error(diff)
	}
}
