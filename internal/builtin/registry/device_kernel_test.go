// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package registry

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// newPod is the UID of a pod that came after the one of the scene, which is gone.
const newPod = "7d4f2a90-41a7-4f2b-9a53-1f9f0e0b9d77"

// deviceAsker asks about the devices of a scene.
func deviceAsker(t *testing.T, s *devicetest.Scene, claims device.Claims) *asker {
	t.Helper()
	return newAsker(t, Deps{Pods: s.Pods, Kubelet: s.Node, Owners: s.Runtime, Devices: &device.Inspector{
		Kubelet: s.Node, Finder: &devholder.Finder{Runner: &subprocess.Runner{}}, Runtime: s.Runtime, Pods: s.Pods, Claims: claims, Runner: &subprocess.Runner{},
	}})
}

// boundClaims are the PersistentVolumes of every pod.
type boundClaims []string

func (c boundClaims) PersistentVolumes(context.Context, *corev1.Pod) []string { return c }

// heldFor is a scene whose device an exporter holds, and the Diagnosis of a pod with that UID.
func heldFor(t *testing.T, s *devicetest.Scene, uid, mode string) (exporter *kerneltest.Actor, spec v1.DiagnosisSpec) {
	t.Helper()
	exporter = s.Container(mode)
	s.Runtime.Of = devicetest.Exporter()
	s.UnmountOnHost()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-0", UID: types.UID(uid)},
		Spec: corev1.PodSpec{NodeName: kubelettest.NodeName, Containers: []corev1.Container{{Name: "db"}}, Volumes: []corev1.Volume{{
			Name:         "data",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
		}}},
	}
	s.Pods.Set(pod)
	return exporter, v1.DiagnosisSpec{PodReference: &v1.PodReference{Namespace: pod.Namespace, Name: pod.Name}}
}

// addVolume has the kubelet make the directory of a volume.
func addVolume(t *testing.T, s *devicetest.Scene, uid, name string) {
	t.Helper()
	point := s.Node.VolumePoint(kubelet.Volume{PodUID: uid, Plugin: kubelet.CSIPlugin, Name: name})
	if err := os.MkdirAll(filepath.Dir(point), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestAutoLeavesADeviceInUse: while the host has it mounted, it is no fault that a container does.
func TestAutoLeavesADeviceInUse(t *testing.T) {
	s := devicetest.New(t, "")
	s.Container("exporter")
	s.Runtime.Of = devicetest.Exporter()
	got := deviceAsker(t, s, nil).ask(t, v1.DiagnosisSpec{Parameters: map[string]string{v1.ParamDevice: s.Device.Node()}}).Status
	if got.Outcome != v1.OutcomeNoFault || got.Phase != v1.DiagnosisSucceeded {
		t.Errorf("status: %+v", got)
	}
}

// TestAutoReleasesADevice that is named, or behind a volume of a pod, however that shows: a plan first, which changes nothing,
// and then just that.
func TestAutoReleasesADevice(t *testing.T) {
	for name, tc := range map[string]struct {
		uid     string
		prepare func(t *testing.T, s *devicetest.Scene)
		claims  device.Claims
		named   bool
	}{
		"by its name":            {uid: devicetest.PodUID, named: true},
		"the pod that had it":    {uid: devicetest.PodUID},
		"the next, by directory": {uid: newPod, prepare: func(t *testing.T, s *devicetest.Scene) { addVolume(t, s, newPod, devicetest.Volume) }},
		"the next, by its claim": {uid: newPod, claims: boundClaims{devicetest.Volume}},
	} {
		t.Run(name, func(t *testing.T) {
			s := devicetest.New(t, "")
			exporter, spec := heldFor(t, s, tc.uid, "exporter")
			if tc.prepare != nil {
				tc.prepare(t, s)
			}
			target := "pod default/db-0"
			if tc.named {
				spec = v1.DiagnosisSpec{Parameters: map[string]string{v1.ParamDevice: s.Device.Node()}}
				target = "device " + s.Device.Node()
			}
			a, before := deviceAsker(t, s, tc.claims), s.MountsOf(exporter.PID)
			spec.Mode = v1.ModePlan
			planned := a.ask(t, spec).Status
			if planned.Outcome != v1.OutcomePlanned || planned.Faults[0].Code != "HeldDevice" || !strings.HasPrefix(planned.Target, target) || !planned.Plan.Lossless {
				t.Fatalf("plan: %+v", planned)
			}
			if f := planned.Faults[0]; f.Pod.Name != "node-exporter-x7k2p" || !tc.named && !strings.Contains(strings.Join(f.Evidence, "\n"), target) {
				t.Errorf("fault: %+v", f)
			}
			if diff := cmp.Diff(before, s.MountsOf(exporter.PID)); diff != "" || !s.Busy() {
				t.Errorf("planning has changed mounts of the holder (-before +after):\n%s", diff)
			}
			spec.Mode, spec.PlanHash = "", planned.Plan.Hash
			if done := a.ask(t, spec).Status; done.Outcome != v1.OutcomeHealed || s.Busy() {
				t.Errorf("release: %+v, busy: %v", done, s.Busy())
			}
			spec.PlanHash = ""
			if after := a.ask(t, spec).Status; after.Outcome != v1.OutcomeNoFault || after.Phase != v1.DiagnosisSucceeded {
				t.Errorf("afterwards: %+v", after)
			}
		})
	}
}

// TestAutoReleasesARawBlockVolume that is held as the file system it was before. The pod keeps the device.
func TestAutoReleasesARawBlockVolume(t *testing.T) {
	s := devicetest.New(t, "image")
	_, spec := heldFor(t, s, newPod, "exporter")
	node := filepath.Join(s.Node.PluginsDir(), "kubernetes.io/csi/volumeDevices/publish/pvc-raw", newPod)
	if err := errors.Join(os.MkdirAll(filepath.Dir(node), 0o755), os.WriteFile(node, nil, 0o600), sys.BindMount(s.Device.Node(), node)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = systest.UnmountPath(node, true) })
	got := deviceAsker(t, s, nil).ask(t, spec).Status
	if got.Outcome != v1.OutcomeHealed || s.Busy() {
		t.Fatalf("status: %+v, busy: %v", got, s.Busy())
	}
	for _, a := range got.Operations[len(got.Operations)-1].Actions {
		if a.Kind != "Unmount" {
			t.Errorf("action %+v", a)
		}
	}
	if text := strings.Join(got.Faults[0].Evidence, "\n"); !strings.Contains(text, "as a raw block volume") {
		t.Errorf("evidence %s", text)
	}
	if _, err := (blockdev.Sys{}).Backing(s.Device); err != nil {
		t.Errorf("the device is detached: %v", err)
	}
}

// TestAutoLeavesDevicesOfOtherPods: a device that nothing ties to the pod is not spoken of, and stays as it is.
func TestAutoLeavesDevicesOfOtherPods(t *testing.T) {
	s := devicetest.New(t, "")
	exporter, spec := heldFor(t, s, newPod, "exporter")
	addVolume(t, s, newPod, devicetest.Volume+"0")
	before := s.MountsOf(exporter.PID)
	got := deviceAsker(t, s, boundClaims{"pvc-other"}).ask(t, spec).Status
	if got.Outcome != v1.OutcomeNoFault || got.Phase != v1.DiagnosisSucceeded || strings.Contains(got.Summary, s.Device.Name) {
		t.Errorf("status: %+v", got)
	}
	if diff := cmp.Diff(before, s.MountsOf(exporter.PID)); diff != "" || !s.Busy() {
		t.Errorf("mounts of the holder (-before +after):\n%s", diff)
	}
}

// TestAutoOfAPodRefuses: the guard of the release refuses the same for a node.
func TestAutoOfAPodRefuses(t *testing.T) {
	s := devicetest.New(t, "")
	exporter, spec := heldFor(t, s, devicetest.PodUID, "shared")
	before := s.MountsOf(exporter.PID)
	got := deviceAsker(t, s, nil).ask(t, spec).Status
	last := got.Operations[len(got.Operations)-1].Message
	if got.Outcome != v1.OutcomeFaultFound || !strings.Contains(got.Summary, "HeldDevice") || !strings.Contains(last, "would spread") || !strings.Contains(last, "Next: ") {
		t.Errorf("status: %+v", got)
	}
	if diff := cmp.Diff(before, s.MountsOf(exporter.PID)); diff != "" || !s.Busy() {
		t.Errorf("mounts of the holder (-before +after):\n%s", diff)
	}
}

// TestAutoReleasesOneOfTwoDevices: an exporter holds those of two pods, and one pod is named.
func TestAutoReleasesOneOfTwoDevices(t *testing.T) {
	const other = "pvc-other"
	s, _, above := devicetest.NewMapped(t, other)
	exporter, spec := heldFor(t, s, devicetest.PodUID, "exporter")
	s.UnmountVolume(other)
	got := deviceAsker(t, s, nil).ask(t, spec).Status
	if got.Outcome != v1.OutcomeHealed || s.Busy() {
		t.Errorf("status: %+v, busy: %v", got, s.Busy())
	}
	left := 0
	for m := range s.MountsOf(exporter.PID) {
		if strings.Contains(m, other) {
			left++
		}
	}
	if left != 1 {
		t.Errorf("%d mounts of device %s are left, want 1", left, above[1].Node())
	}
}
