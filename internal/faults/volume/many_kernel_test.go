// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

// addVolume has another volume of another pod in place: directory below of what is mounted at base, staged and bound.
func (s *volumeScene) addVolume(uid, name, base, below string) (g, p string) {
	s.t.Helper()
	g = s.Node.StagingPoints(driver, "handle of "+name, name)[0]
	p = s.Node.VolumePoint(kubelet.Volume{PodUID: uid, Plugin: kubelet.CSIPlugin, Name: name})
	for _, dir := range []string{g, p} {
		s.must(os.MkdirAll(dir, 0o755))
		s.Record(dir, kubelet.VolumeRecord{Driver: driver, Handle: "handle of " + name, PersistentVolume: name})
		s.t.Cleanup(func() { _ = systest.UnmountPath(dir, true) })
	}
	s.must(sys.BindMount(filepath.Join(base, below), g))
	s.must(sys.BindMount(g, p))
	return g, p
}

// TestManyDead has a thousand volumes die at once.
func TestManyDead(t *testing.T) {
	const many = 1000
	s := bareScene(t, "vol")
	s.Inspector.Prober.(*probe.Prober).Deadline = kerneltest.Patience(20 * time.Second) // others want the processors, too
	s.must(os.RemoveAll(filepath.Dir(s.Point)))
	base := t.TempDir()
	t.Cleanup(func() { _ = systest.UnmountPath(base, true) })
	names := []string{base, "old"}
	for n := range many {
		names = append(names, "vol/"+strconv.Itoa(n))
	}
	server := kerneltest.StartWith(t, nil, "serve", names...)
	staged := map[string]string{}
	for n := range many {
		name := strconv.Itoa(n)
		g, _ := s.addVolume("pod-"+name, "pvc-"+name, base, "vol/"+name)
		staged[g] = name
	}
	began := time.Now()
	survey := s.survey(mountstate.Scope{})
	t.Logf("%d healthy volumes: %s, asked %d", len(survey.Volumes), time.Since(began), survey.Coverage.Asked)
	if len(survey.Volumes) != many || len(survey.Broken()) > 0 {
		t.Fatalf("%d volumes, %d broken; %q", len(survey.Volumes), len(survey.Broken()), survey.Unknown.Sentences())
	}
	server.Kill()
	s.must(systest.UnmountPath(base, true))
	names[1] = "new"
	kerneltest.StartWith(t, nil, "serve", names...)
	for g, name := range staged {
		s.must(systest.UnmountPath(g, true))
		s.must(sys.BindMount(filepath.Join(base, "vol", name), g))
	}
	began = time.Now()
	survey = s.survey(mountstate.Scope{})
	took := time.Since(began)
	t.Logf("%d dead volumes: %s, asked %d", len(survey.Broken()), took, survey.Coverage.Asked)
	if len(survey.Broken()) != many || took > kerneltest.Patience(time.Minute) {
		t.Errorf("%d of %d are broken, after %s; %q", len(survey.Broken()), many, took, survey.Unknown.Sentences())
	}
	// For each volume its own mount, what is staged for it, and the directory there that belongs in its place.
	if survey.Coverage.Asked > 3*many {
		t.Errorf("asked %d times about %d volumes", survey.Coverage.Asked, many)
	}
	for _, v := range survey.Broken() {
		if v.Verdict.Code != fault.DisconnectedFUSE || v.Replacement.Source == nil || v.Surroundings.SharedWithCount != many-1 || len(v.Surroundings.SharedWith) != 100 {
			t.Fatalf("%s: %s, source %+v (%s), %d shares", v.Evidence.Name, v.Verdict.Code, v.Replacement.Source, v.Replacement.NoSourceReason, v.Surroundings.SharedWithCount)
		}
	}
}

// TestSameDirectoryOfTwoVolumes has two volumes whose directories have one name, on two file systems, and a container
// with both.
func TestSameDirectoryOfTwoVolumes(t *testing.T) {
	s := newScene(t, "vol1")
	base := t.TempDir()
	t.Cleanup(func() { _ = systest.UnmountPath(base, true) })
	other := kerneltest.StartWith(t, nil, "serve", base, "other", "vol1")
	_, p := s.addVolume(string(s.Pod.UID), "pvc-2", base, "vol1")
	s.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/one"}, {Name: "claim", MountPath: "/two"}}
	s.runtime.of = &cri.Owner{Container: "app", PodUID: string(s.Pod.UID), Mounts: []cri.Mount{
		{HostPath: s.Point, ContainerPath: "/one"}, {HostPath: p, ContainerPath: "/two"},
	}}
	c := s.startProcess(s.Point, "/one", p, "/two")
	s.Kill()
	other.Kill()
	s.Remount("new")
	if actions, refusals := s.repairVolume(); len(actions) != 2 || len(refusals) > 0 {
		t.Errorf("actions %+v, refusals %q, want the host's mount and one in the container", actions, refusals)
	}
	if one, two := readInContainer(c.PID, "one/data"), readInContainer(c.PID, "two/data"); one != "new" || !strings.Contains(two, "not connected") {
		t.Errorf("the container reads %q and %q, want the other volume untouched", one, two)
	}
}

// TestHungVolumeOfAnotherPod has one volume hang while another is healed.
func TestHungVolumeOfAnotherPod(t *testing.T) {
	s := newScene(t, deepDir)
	base := t.TempDir()
	t.Cleanup(func() { _ = systest.UnmountPath(base, true) })
	other := kerneltest.StartWith(t, nil, "serve", base, "other", "vol2")
	t.Cleanup(other.Kill)
	s.addVolume("another-pod", "pvc-2", base, "vol2")
	c := s.startContainer()
	signal(t, other.PID, "STOP")
	s.Kill()
	s.Remount("new,nonempty")
	began := time.Now()
	survey := s.survey(mountstate.Scope{})
	got := map[string]fault.Code{}
	for _, v := range survey.Broken() {
		got[v.Evidence.Name] = v.Verdict.Code
	}
	if fmt.Sprint(got) != "map[pvc-1:DisconnectedFUSE pvc-2:HungMount]" || time.Since(began) > kerneltest.Patience(time.Minute) {
		t.Errorf("broken: %v, after %s; %q", got, time.Since(began), survey.Unknown.Sentences())
	}
	fate, want := strings.Join(survey.Broken()[0].Surroundings.DaemonNotes, "\n"), []string{`option "nonempty"`, "its daemon has ended"}
	if sys.HasFUSEServer.Probe() != nil { // the stopped daemon may be the one
		want = []string{"it is not known which process serves"}
	}
	if survey.Broken()[0].Evidence.Name != pvName || slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(fate, w) }) {
		t.Errorf("fate of %s: %q, want %q in it", survey.Broken()[0].Evidence.Name, fate, want)
	}
	s.repairVolume()
	if read := readInContainer(c.PID, "data/data"); read != "new,nonempty" {
		t.Errorf("the container reads %q", read)
	}
}

// TestLinkInTheVolume has the directory of a subPath be replaced by a link to another volume's directory.
func TestLinkInTheVolume(t *testing.T) {
	s, c := newRemountedScene(t)
	s.Elsewhere("mv", "csi.vol1.sub", "old")
	s.Elsewhere("link", "csi.vol1.sub")
	actions, _ := s.planOf(s.inspectVolume(), volume.PlanOptions{})
	before, inside, tried := s.Mounts(), s.MountsOf(c.PID), 0
	for _, step := range actions {
		if !strings.HasSuffix(step.Mount.Root, "/sub") {
			continue
		}
		tried++
		if done, err := s.Inspector.Open()(t.Context(), step); !errors.Is(err, volume.ErrRefused) {
			t.Errorf("apply to %q: %+v, %v, want that what the link leads to is not taken", step.Mount.Point, done, err)
		}
	}
	expectSameMounts(t, before, s.Mounts())
	expectSameMounts(t, inside, s.MountsOf(c.PID))
	if sub := readInContainer(c.PID, "sub/data"); tried != 2 || !strings.Contains(sub, "not connected") {
		t.Errorf("%d tried, the container reads %q", tried, sub)
	}
}
