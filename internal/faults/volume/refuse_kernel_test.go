// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

const mountedIn = "something is mounted in the volume"

// TestRefusals has each of the conditions be false, and makes sure that nothing is touched. steps is how much may be
// done all the same.
func TestRefusals(t *testing.T) {
	other := kubelet.VolumeRecord{Driver: driver, Handle: "handle-2", PersistentVolume: "pvc-2"}
	for name, c := range map[string]struct {
		set   func(s *volumeScene)
		why   string
		steps int
	}{
		"nothing is mounted again": {func(s *volumeScene) {
			s.must(systest.UnmountPath(s.Staging, true))
		}, "has nothing mounted for the whole node", 0},
		"the staging path is dead, too":         {func(s *volumeScene) { s.Kill() }, "is not alive either", 0},
		"the staging path is of another volume": {func(s *volumeScene) { s.Record(s.Staging, other) }, `is of volume handle "handle-2"`, 0},
		"the pod's record is of another volume": {func(s *volumeScene) { s.Record(s.Point, other) }, "has nothing mounted for the whole node", 0},
		"another driver's volume of that handle": {func(s *volumeScene) {
			s.Record(s.Staging, kubelet.VolumeRecord{Driver: "other.example.com", Handle: handle})
		}, `of driver "other.example.com"`, 0},
		"no record at the staging path": {func(s *volumeScene) { s.must(os.Remove(kubelet.VolumeRecordPath(s.Staging))) }, "is unknown: read record", 0},
		"no record of the pod's":        {func(s *volumeScene) { s.must(os.Remove(kubelet.VolumeRecordPath(s.Point))) }, "the volume is unknown", 0},
		"a record that is a link": {func(s *volumeScene) {
			s.must(os.Rename(kubelet.VolumeRecordPath(s.Point), s.Point+"-moved"))
			s.must(os.Symlink(s.Point+"-moved", kubelet.VolumeRecordPath(s.Point)))
		}, "no file of the kubelet's", 0},
		"two staging paths disagree": {func(s *volumeScene) {
			second := s.Node.StagingPoints(driver, handle, pvName)[1]
			s.must(os.MkdirAll(second, 0o755))
			s.Record(second, kubelet.VolumeRecord{Driver: driver, Handle: handle})
			s.must(sys.BindMount(filepath.Join(s.Staging, "other"), second))
			s.t.Cleanup(func() { _ = systest.UnmountPath(second, true) })
		}, "different directories are mounted there", 0},
		"the directory is gone": {func(s *volumeScene) { s.Elsewhere("mv", "csi.vol1", "old") }, "there is no \"", 0},
		"another file system is staged": {func(s *volumeScene) {
			s.must(systest.UnmountPath(s.Staging, true))
			s.must(sys.NewMount("mem", s.Staging, "tmpfs", ""))
		}, "they may be different volumes", 0},
		mountedIn: {func(s *volumeScene) {
			s.must(sys.NewMount("x", filepath.Join(s.Point, "sub"), "tmpfs", ""))
			s.t.Cleanup(func() { _ = systest.UnmountPath(filepath.Join(s.Point, "sub"), true) })
		}, "other mounts lie on it", 3},
		"the spec has the volume elsewhere": {func(s *volumeScene) {
			s.Pod.Spec.Containers[0].VolumeMounts[0].MountPath = "/other"
		}, `does not ask for this volume at "/data"`, 3},
		"the spec has another subPath": {func(s *volumeScene) { s.Pod.Spec.Containers[0].VolumeMounts[1].SubPath = "sub2" }, `asks for subPath "sub2"`, 2},
		"the spec is not known":        {func(s *volumeScene) { s.Inspector.Pods = nil }, "spec is not known", 2},
		"the subPath is gone":          {func(s *volumeScene) { s.Elsewhere("mv", "csi.vol1.sub", "old") }, "there is no \"", 2},
		"no runtime":                   {func(s *volumeScene) { s.Inspector.Runtime = nil }, "no container runtime was asked", 2},
		"not mounted by the runtime": {func(s *volumeScene) {
			s.runtime.of.Mounts = []cri.Mount{{HostPath: "/", ContainerPath: "/host"}}
		}, "not as a volume of its own", 2},
		"from elsewhere": {func(s *volumeScene) { s.runtime.of.Mounts[0].HostPath = filepath.Dir(s.Point) }, "not as a volume of its own", 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, deepDir)
			container := s.startContainer()
			if name == mountedIn { // nothing can be mounted in what is dead
				c.set(s)
			}
			s.Kill()
			s.Remount("new")
			if name != mountedIn {
				c.set(s)
			}
			s.expectRefused(container, c.why, c.steps)
		})
	}
}

// TestCopiesOfOthers: in a container of another pod, that of the driver mostly, to which the kubelet's root directory
// is mounted, and in services of the node that have a mount namespace of their own. Their copies are no fault of the
// pod, keep nothing of it from being repaired, and stay as they are.
func TestCopiesOfOthers(t *testing.T) {
	for name, set := range map[string]func(*volumeScene){
		"another pod":  func(s *volumeScene) { s.runtime.of.PodUID = "another" },
		"no container": func(s *volumeScene) { s.runtime.of = nil },
	} {
		t.Run(name, func(t *testing.T) {
			s, other := newRemountedScene(t)
			set(s)
			inside := s.MountsOf(other.PID)
			health := s.inspectVolume()
			actions, refusals := s.planOf(health, volume.PlanOptions{})
			if len(actions) != 2 || len(refusals) > 0 || health.Surroundings.ForeignCopies == 0 {
				t.Errorf("%d foreign copies, actions %+v, refusals %q", health.Surroundings.ForeignCopies, actions, refusals)
			}
			for _, f := range health.Findings() {
				if f.Pod.UID != health.Evidence.Pod.UID {
					t.Errorf("found in pod %q: %+v", f.Pod.UID, f)
				}
			}
			s.apply(actions...)
			if diff := cmp.Diff(inside, s.MountsOf(other.PID)); diff != "" {
				t.Errorf("mounts of the other (-before +after):\n%s", diff)
			}
		})
	}
}

// expectRefused makes sure that a plan says why, that looking and refused actions change nothing, and how many actions
// are left.
func (s *volumeScene) expectRefused(c *kerneltest.Actor, why string, steps int) {
	s.t.Helper()
	before, inside := s.Mounts(), s.MountsOf(c.PID)
	health := s.inspectVolume()
	actions, refusals := s.planOf(health, volume.PlanOptions{})
	if health.Verdict.Code != fault.DisconnectedFUSE || len(actions) != steps || !strings.Contains(strings.Join(refusals, "\n"), why) {
		s.t.Errorf("%s, %d actions %+v, refusals %q; want %d, and %q", health.Verdict.Code, len(actions), actions, refusals, steps, why)
	}
	tried := 0
	for _, finding := range health.Findings() {
		a := s.newAction(fault.Replace, finding.Mount)
		if isPlanned(actions, a) {
			continue
		}
		tried++
		if done, err := s.Inspector.Open()(s.t.Context(), a); !errors.Is(err, volume.ErrRefused) {
			s.t.Errorf("apply to %q: %+v, %v, want that it is refused", finding.Mount.Point, done, err)
		}
	}
	if tried == 0 {
		s.t.Error("nothing was refused")
	}
	expectSameMounts(s.t, before, s.Mounts())
	expectSameMounts(s.t, inside, s.MountsOf(c.PID))
}

// newAction is one about a mount of the pod.
func (s *volumeScene) newAction(kind fault.ActionKind, m fault.Mount) fault.Action {
	return fault.Action{Kind: kind, Mount: &m, Pod: &fault.Pod{UID: string(s.Pod.UID)}}
}

func isPlanned(actions []fault.Action, a fault.Action) bool {
	return slices.ContainsFunc(actions, func(p fault.Action) bool { return *p.Mount == *a.Mount })
}

// TestForgedActions has actions name mounts that are no fault.
func TestForgedActions(t *testing.T) {
	s, c := newRemountedScene(t)
	before, inside := s.Mounts(), s.MountsOf(c.PID)
	actions, _ := s.planOf(s.inspectVolume(), volume.PlanOptions{})
	if len(actions) != 4 {
		t.Fatalf("actions %+v", actions)
	}
	for name, change := range map[string]func(*fault.Action){
		"no pod":            func(a *fault.Action) { a.Pod = nil },
		"no UID":            func(a *fault.Action) { a.Pod.UID = "" },
		"another pod":       func(a *fault.Action) { a.Pod.UID = "another" },
		"no mount":          func(a *fault.Action) { a.Mount = nil },
		"nothing":           func(a *fault.Action) { a.Mount = &fault.Mount{} },
		"the staging path":  func(a *fault.Action) { a.Mount.ID, a.Mount.Point = 0, s.Staging },
		"the root":          func(a *fault.Action) { a.Mount.ID, a.Mount.Point = 0, "/" },
		"out of the volume": func(a *fault.Action) { a.Mount.ID, a.Mount.Point = 0, a.Mount.Point+"/../../.." },
		"a point alone":     func(a *fault.Action) { a.Mount = &fault.Mount{Point: a.Mount.Point, Namespace: a.Mount.Namespace} },
		"the container's": func(a *fault.Action) {
			own := a.Mount.Namespace
			*a.Mount = *actions[3].Mount
			a.Mount.Namespace = own
		},
		"another number":    func(a *fault.Action) { a.Mount.ID++; a.Mount.MountInfoID = 0 },
		"another namespace": func(a *fault.Action) { a.Mount.Namespace = 1 << 31 },
		"another kind":      func(a *fault.Action) { a.Kind = fault.Unmount },
		"abort what answers": func(a *fault.Action) {
			a.Kind = fault.Abort
			a.Mount.ID, a.Mount.MountInfoID = 0, 0
		},
	} {
		a := s.newAction(fault.Replace, *actions[0].Mount)
		change(&a)
		done, err := s.Inspector.Open()(t.Context(), a)
		if !errors.Is(err, volume.ErrRefused) && !(name == "another namespace" && done.Already) {
			t.Errorf("%s: %+v, %v, want that it is refused", name, done, err)
		}
	}
	expectSameMounts(t, before, s.Mounts())
	expectSameMounts(t, inside, s.MountsOf(c.PID))
}

// TestCrash ends a repair after each of its steps, and has another begin.
func TestCrash(t *testing.T) {
	for done := range 5 {
		s, c := newRemountedScene(t)
		first, _ := s.planOf(s.inspectVolume(), volume.PlanOptions{})
		if len(first) != 4 {
			t.Fatalf("actions %+v", first)
		}
		s.apply(first[:done]...)
		second, refusals := s.planOf(s.inspectVolume(), volume.PlanOptions{})
		if len(second) != 4-done || len(refusals) > 0 {
			t.Errorf("after %d actions: %+v, refusals %q", done, second, refusals)
		}
		s.apply(first...) // the old plan, as it was written down
		proof, err := s.Inspector.Verify(t.Context(), first)
		s.must(err)
		if !proof.Healed || readInContainer(c.PID, "data/data") != "new" || readInContainer(c.PID, "sub/data") != "new" {
			t.Errorf("after %d steps: %+v, the container reads %q and %q", done, proof, readInContainer(c.PID, "data/data"), readInContainer(c.PID, "sub/data"))
		}
	}
}

// TestDriverMountsAgainItself has the driver mount the volume again at the pod's place: the container's mount is left.
func TestDriverMountsAgainItself(t *testing.T) {
	for name, unmount := range map[string]bool{"in place": true, "on top": false} {
		t.Run(name, func(t *testing.T) {
			s, c := newRemountedScene(t)
			if unmount {
				s.must(systest.UnmountPath(s.Point, true))
			}
			s.must(sys.BindMount(filepath.Join(s.Staging, deepDir), s.Point))
			v := s.inspectVolume()
			if v.Verdict.Code != "" || len(v.Copies) != 3 || len(v.Evidence.HiddenMounts) != map[bool]int{true: 0, false: 1}[unmount] {
				t.Fatalf("%s, copies %+v, beneath %+v", v.Verdict.Code, v.Copies, v.Evidence.HiddenMounts)
			}
			if actions, refusals := s.repairVolume(); len(actions) != 3 || readInContainer(c.PID, "data/data") != "new" || readInContainer(c.PID, "sub/data") != "new" {
				t.Errorf("actions %+v, refusals %q, the container reads %q", actions, refusals, readInContainer(c.PID, "data/data"))
			}
		})
	}
}

// TestServiceOfTheNode has a process with a mount namespace of its own keep what it saw: it is counted, and left alone.
func TestServiceOfTheNode(t *testing.T) {
	s := newScene(t, deepDir)
	d := kerneltest.Start(t, "daemon")
	s.Kill()
	s.Remount("new")
	before := s.MountsOf(d.PID)
	v := s.inspectVolume()
	if len(v.Copies) != 0 || v.Surroundings.ForeignCopies != 1 || len(v.Findings()) != 1 {
		t.Fatalf("copies = %+v, %d foreign, findings %+v", v.Copies, v.Surroundings.ForeignCopies, v.Findings())
	}
	actions, refusals := s.planOf(v, volume.PlanOptions{})
	if len(actions) != 1 || len(refusals) != 0 {
		t.Errorf("actions %+v, refusals %q", actions, refusals)
	}
	s.apply(actions[0])
	expectSameMounts(t, before, s.MountsOf(d.PID))
}

// TestHostPath has a container mount a directory of a FUSE file system of the host.
func TestHostPath(t *testing.T) {
	s := bareScene(t, "vol1")
	s.Serve("old")
	name := filepath.Join(s.Staging, "vol1")
	s.Pod.Spec.Volumes = []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: name}}}}
	s.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/data"}}
	s.runtime.of = &cri.Owner{Container: "app", PodUID: string(s.Pod.UID), Mounts: []cri.Mount{{HostPath: name, ContainerPath: "/data"}}}
	c := s.startProcess(name, "/data")
	look := func() *volume.Health {
		survey := s.survey(s.ofPod())
		if len(survey.Volumes) != 1 || survey.Volumes[0].Evidence.Plugin != volume.HostPathPlugin {
			t.Fatalf("volumes = %+v", survey.Volumes)
		}
		return survey.Volumes[0]
	}
	if v := look(); v.Broken() {
		t.Errorf("%+v, want a healthy one", v)
	}
	s.Kill()
	health := look()
	actions, refusals := s.planOf(health, volume.PlanOptions{})
	if health.Verdict.Code != fault.DisconnectedFUSE || len(health.Copies) != 1 || len(actions) > 0 || len(refusals) != 2 {
		t.Errorf("%s, copies %+v, actions %+v, refusals %q", health.Verdict.Code, health.Copies, actions, refusals)
	}
	s.Remount("new")
	health = look()
	actions, refusals = s.planOf(health, volume.PlanOptions{})
	if health.Verdict.Code != "" || len(actions) != 1 {
		t.Fatalf("%s, actions %+v, refusals %q", health.Verdict.Code, actions, refusals)
	}
	s.apply(actions[0])
	if got := readInContainer(c.PID, "data/data"); got != "new" {
		t.Errorf("the container reads %q", got)
	}
}
