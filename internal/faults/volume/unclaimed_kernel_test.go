// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

// unclaimedScene is a container that has a FUSE file system of the host, which is no volume that is known without the spec of
// its pod. over are pairs of paths that are mounted there after it.
func unclaimedScene(t *testing.T, over ...string) (s *volumeScene, host string, daemon *kerneltest.Actor) {
	t.Helper()
	s, host = bareScene(t, "vol1"), filepath.Join(t.TempDir(), "host")
	s.must(os.Mkdir(host, 0o755))
	daemon = kerneltest.FUSE(t, host)
	uid := fmt.Sprintf("7d0e5d0c-3a7c-4a53-9f0e-%012x", os.Getpid()) // no process of another test is in a control group of it
	s.Pod.UID, s.groupEnd = types.UID(uid), "-pod"+uid
	s.must(os.MkdirAll(s.Node.PodDir(uid), 0o755))
	s.runtime.of = &cri.Owner{
		ContainerID: "c1", Container: "app", PodUID: string(s.Pod.UID), PodNamespace: s.Pod.Namespace, PodName: s.Pod.Name,
		Mounts: []cri.Mount{{HostPath: host, ContainerPath: "/data"}},
	}
	s.startProcess(append([]string{host, "/data"}, over...)...)
	s.Inspector.Pods = nil
	return s, host, daemon
}

func (s *volumeScene) findings(of mountstate.Scope) (all []fault.Finding, survey *volume.Survey) {
	s.t.Helper()
	survey = s.survey(of)
	for _, v := range survey.Broken() {
		all = append(all, v.Findings()...)
	}
	return all, survey
}

// TestDeadFileSystemOfNoVolume: a container has it, and no spec was given.
func TestDeadFileSystemOfNoVolume(t *testing.T) {
	s, host, daemon := unclaimedScene(t)
	if all, survey := s.findings(mountstate.Scope{}); len(all) > 0 || len(survey.Unknown.Places) > 0 {
		t.Fatalf("while it lives: %+v, %+v", all, survey.Coverage)
	}
	daemon.Kill()
	for _, onHost := range []bool{true, false} {
		if !onHost {
			s.must(systest.UnmountPath(host, true))
		}
		for _, of := range []mountstate.Scope{{}, {PodUIDs: []string{string(s.Pod.UID)}}} {
			all, survey := s.findings(of)
			if len(all) != 1 {
				t.Fatalf("on the host %v, %+v: findings %+v, %+v", onHost, of, all, survey.Coverage)
			}
			f := all[0]
			if f.Code != fault.DisconnectedFUSE || f.Pod.UID != string(s.Pod.UID) || f.Pod.Name != s.Pod.Name || f.Container != "app" ||
				f.Mount.Point != "/data" || f.Details.Place != fault.PlaceContainer || f.Details.Refusal.Reason != fault.NodeMount ||
				!strings.Contains(strings.Join(f.Evidence, "; "), host) {
				t.Errorf("finding %+v", f)
			}
			if next := fault.Known().NextStep(f); !strings.Contains(next, "start the program again") || !strings.Contains(next, `container "app"`) {
				t.Errorf("next: %q", next)
			}
			actions, refusals := s.planOf(survey.Broken()[0], volume.PlanOptions{Abort: true})
			if len(actions) > 0 || len(refusals) != 1 {
				t.Errorf("actions %+v, refusals %q", actions, refusals)
			}
			if again := survey.Record().Judge(func(string) *corev1.Pod { return nil }); len(again.Broken()) != 1 || again.Broken()[0].Verdict.Code != f.Code {
				t.Errorf("judged again: %+v", again.Volumes)
			}
		}
	}
}

// TestDeadFileSystemOfAHostPath: with the spec of the pod it is found as its volume, and the container's mount as a copy.
func TestDeadFileSystemOfAHostPath(t *testing.T) {
	s, host, daemon := unclaimedScene(t)
	daemon.Kill()
	s.Pod.Spec.Volumes = []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}}}}
	s.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/data"}}
	s.Inspector.Pods = pods{string(s.Pod.UID): s.Pod}
	all, _ := s.findings(mountstate.Scope{})
	places := map[fault.Place]int{}
	for _, f := range all {
		places[f.Details.Place]++
	}
	if len(all) != 2 || places[fault.PlaceHostPath] != 1 || places[fault.PlaceContainer] != 1 || all[1].Volume != "host" {
		t.Errorf("findings %+v", all)
	}
}

// TestDeadFileSystemOfNoPod: only the host has it, and a process that is in no pod of this kubelet. Without specs it is not judged, as it may be a hostPath of a
// pod that does not run. With them it is its owner's.
func TestDeadFileSystemOfNoPod(t *testing.T) {
	s, host, daemon := unclaimedScene(t)
	kerneltest.Start(t, "daemon")
	s.runtime.of = &cri.Owner{ContainerID: "c2", Container: "x", PodUID: "other"}
	s.checkOfNode(host, "while it lives", false)
	daemon.Kill()
	s.checkOfNode(host, "dead", true)
	if all, survey := s.findings(mountstate.Scope{PodUIDs: []string{string(s.Pod.UID)}}); len(all) > 0 || len(survey.Unknown.Places) > 0 {
		t.Errorf("for the pod: %+v, %+v", all, survey.Unknown)
	}
	s.Inspector.Pods = pods{string(s.Pod.UID): s.Pod}
	s.checkOfNode(host, "with specs", false)
}

// TestDeadVolumeOfAnotherKubelet: two kubelets of a machine have root directories of their own, and each one's volumes are judged with it.
func TestDeadVolumeOfAnotherKubelet(t *testing.T) {
	s, _, _ := unclaimedScene(t)
	for _, at := range []string{
		"pods/7d0e5d0c-3a7c-4a53-9f0e-000000000001/volumes/kubernetes.io~empty-dir/w/build", "pods/7d0e5d0c-3a7c-4a53-9f0e-000000000001/volume-subpaths/v/c/0",
		"plugins/kubernetes.io/csi/d.example.com/1/globalmount",
	} {
		at = filepath.Join(t.TempDir(), at)
		s.must(os.MkdirAll(at, 0o755))
		kerneltest.FUSE(t, at).Kill()
	}
	if all, survey := s.findings(mountstate.Scope{}); len(all) > 0 || len(survey.Unknown.Places) > 0 {
		t.Errorf("%+v, not judged %+v", all, survey.Unknown.Places)
	}
}

// checkOfNode fails if a mount of the node is a fault, or unless it is listed as not judged as wanted. Both hold for a look and for its record.
func (s *volumeScene) checkOfNode(host, when string, unknown bool) {
	s.t.Helper()
	all, survey := s.findings(mountstate.Scope{})
	for _, places := range [][]mountstate.Place{survey.Unknown.Places, survey.Record().Judge(func(string) *corev1.Pod { return nil }).Unknown.Places} {
		listed := len(places) == 1 && places[0].Point == host && places[0].Pod.UID == "" && strings.Contains(places[0].Reason, "is broken (DisconnectedFUSE)")
		if len(all) > 0 || listed != unknown || !unknown && len(places) > 0 {
			s.t.Errorf("%s: %+v, not judged %+v", when, all, places)
		}
	}
}

// TestHiddenDeadFileSystem: a living mount lies on the dead one in the container.
func TestHiddenDeadFileSystem(t *testing.T) {
	lives := t.TempDir()
	kerneltest.FUSE(t, lives)
	s, _, daemon := unclaimedScene(t, lives, "/data")
	daemon.Kill()
	if all, survey := s.findings(mountstate.Scope{}); len(all) > 0 || len(survey.Unknown.Places) > 0 {
		t.Errorf("%+v, %+v", all, survey.Coverage)
	}
}

// TestDeadFileSystemOfTheNode: a container that has the root directory of the node has all of its mounts, and those of other
// kubelets there.
func TestDeadFileSystemOfTheNode(t *testing.T) {
	s, host, daemon := unclaimedScene(t)
	s.runtime.of.Mounts = []cri.Mount{{HostPath: "/", ContainerPath: "/"}}
	daemon.Kill()
	s.checkOfNode(host, "without specs", true)
	s.Inspector.Pods = pods{string(s.Pod.UID): s.Pod}
	s.checkOfNode(host, "with specs", false)
}
