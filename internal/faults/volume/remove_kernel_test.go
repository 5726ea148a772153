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
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

// deadMountScene has a pod with an emptyDir and a hostPath. at is where FUSE file systems are mounted.
type deadMountScene struct {
	*volumeScene
	at string
	// beneath serves a mount that the top one hides.
	beneath *kerneltest.Actor
}

// newDeadMountScene has the mounts in the emptyDir, or at the hostPath.
func newDeadMountScene(t *testing.T, hostPath bool) *deadMountScene {
	t.Helper()
	s := &deadMountScene{volumeScene: bareScene(t, deepDir)}
	s.at = filepath.Join(s.Node.VolumeDir(string(s.Pod.UID), "kubernetes.io/empty-dir", "w"), "build")
	s.Pod.Spec.Volumes = []corev1.Volume{{Name: "w", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	if hostPath {
		s.at = filepath.Join(t.TempDir(), "data")
		s.Pod.Spec.Volumes = append(s.Pod.Spec.Volumes, s.hostPath("host"))
	}
	s.must(os.MkdirAll(s.at, 0o755))
	t.Cleanup(func() {
		for systest.UnmountPath(s.at, true) == nil {
		}
	})
	return s
}

func (s *deadMountScene) hostPath(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: s.at}}}
}

// serve mounts one more file system on top.
func (s *deadMountScene) serve() *kerneltest.Actor {
	s.t.Helper()
	return kerneltest.StartWith(s.t, nil, "serve", s.at, "content", "dir")
}

// deletePod has the pod be deleted.
func (s *volumeScene) deletePod() { s.Pod.DeletionTimestamp = &metav1.Time{} }

// only is the one broken volume, with its finding.
func (s *deadMountScene) only() (*volume.Health, fault.Finding) {
	s.t.Helper()
	broken := s.survey(s.ofPod()).Broken()
	if len(broken) != 1 || len(broken[0].Findings()) != 1 {
		s.t.Fatalf("%d volumes are broken, want one with one fault", len(broken))
	}
	return broken[0], broken[0].Findings()[0]
}

// plan is what would be done, and the reasons against it.
func (s *deadMountScene) plan() (actions []fault.Action, refusals []string) {
	s.t.Helper()
	v, _ := s.only()
	return s.planOf(v, volume.PlanOptions{})
}

// layers counts the mounts there.
func (s *deadMountScene) layers() int {
	s.t.Helper()
	table, err := mountns.Table(0)
	s.must(err)
	return len(table.All(s.at))
}

// run does a plan and has it verified.
func (s *deadMountScene) run(actions []fault.Action) volume.Proof {
	s.t.Helper()
	for _, a := range actions {
		if a.Kind != fault.Unmount || !a.Lossless || a.Safety == "" {
			s.t.Errorf("action %+v", a)
		}
		if done, err := s.Inspector.Open()(s.t.Context(), a); err != nil || done.Already {
			s.t.Fatalf("apply: %+v, %v", done, err)
		}
	}
	proof, err := s.Inspector.Verify(s.t.Context(), actions)
	s.must(err)
	return proof
}

// podProcess starts a process in a control group of the pod.
func (s *volumeScene) podProcess() (end func()) {
	s.t.Helper()
	return kubelettest.PodProcess(s.t, string(s.Pod.UID))
}

// TestDeadMountInsideAnEmptyDir: no driver mounts it again. It stays while the pod runs, and goes once the pod goes.
func TestDeadMountInsideAnEmptyDir(t *testing.T) {
	s := newDeadMountScene(t, false)
	server := s.serve()
	if survey, err := s.Inspector.Inspect(t.Context(), mountstate.Scope{}); err != nil || len(survey.Volumes) != 1 || len(survey.Broken()) != 0 || !survey.Volumes[0].Evidence.Origin.Inside {
		t.Fatalf("healthy: %+v, %v", survey, err)
	}
	server.Kill()
	check := func(reason fault.RefusalReason, text string) {
		t.Helper()
		_, f := s.only()
		if d := f.Details; f.Code != fault.DisconnectedFUSE || f.Volume != "w" || f.Mount.Point != s.at || d.Place != fault.PlaceInsideVolume ||
			d.Repair != "" || d.Refusal.Reason != reason || !strings.Contains(d.Refusal.Text, text) || fault.Known().EvictionHelps(f) {
			t.Errorf("finding %+v", f)
		}
		if actions, refusals := s.plan(); len(actions) != 0 || len(refusals) != 1 || !strings.Contains(refusals[0], d(f)) || s.layers() != 1 {
			t.Errorf("plan %+v, refusals %q, %d layers", actions, refusals, s.layers())
		}
	}
	check(fault.NodeMount, "start the program that mounts it first, then unmount it")
	_, stays := s.only()
	if !slices.ContainsFunc(fault.Known().Advise(stays, fault.Caller{}).Commands, func(c fault.Command) bool { return strings.HasSuffix(c.Line, " || umount -- "+fault.Quote(s.at)) }) {
		t.Errorf("commands %+v, want the line that unmounts it", fault.Known().Advise(stays, fault.Caller{}).Commands)
	}
	s.deletePod()
	end := s.podProcess()
	check(fault.PodGoes, "which is in a control group of the pod")
	end()
	_, f := s.only()
	actions, refusals := s.plan()
	if f.Details.Repair != fault.Unmount || f.Details.Refusal != (fault.Refusal{}) || len(actions) != 1 || len(refusals) != 0 {
		t.Fatalf("finding %+v, plan %+v, refusals %q", f, actions, refusals)
	}
	if impact := impactOf(f); impact != fault.ImpactTerminating {
		t.Errorf("impact %s", impact)
	}
	if proof := s.run(actions); !proof.Healed || s.layers() != 0 {
		t.Errorf("proof %+v, %d layers", proof, s.layers())
	}
	if done, err := s.Inspector.Open()(t.Context(), actions[0]); err != nil || !done.Already {
		t.Errorf("once more: %+v, %v", done, err)
	}
}

// TestPlanNamesTheContainer: a dead mount goes from above a living one, and a container that has the dead one by its runtime keeps that.
func TestPlanNamesTheContainer(t *testing.T) {
	s := newDeadMountScene(t, true)
	s.serve()
	top := s.serve()
	s.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/data"}}
	s.runtime.of = &cri.Owner{
		ContainerID: "c1", Container: "app", PodUID: string(s.Pod.UID), PodNamespace: s.Pod.Namespace, PodName: s.Pod.Name,
		Mounts: []cri.Mount{{HostPath: s.at, ContainerPath: "/data"}},
	}
	app := s.startProcess(s.at, "/data")
	top.Kill()
	survey := s.survey(s.ofPod())
	if len(survey.Broken()) != 1 {
		t.Fatalf("broken %+v", survey.Broken())
	}
	actions, refusals := s.planOf(survey.Broken()[0], volume.PlanOptions{})
	want := fmt.Sprintf(`; the broken mount stays until they start again in: container "app" of pod %s/%s (process %d)`, s.Pod.Namespace, s.Pod.Name, app.PID)
	if len(actions) != 1 || actions[0].Kind != fault.Unmount || !strings.HasSuffix(actions[0].Loss, want) || !actions[0].Lossless || len(refusals) != 1 {
		t.Errorf("actions %+v, refusals %q, want the loss to end with %q", actions, refusals, want)
	}
}

// d is the text of the refusal.
func d(f fault.Finding) string { return f.Details.Refusal.Text }

// TestDeadMountOverALivingOne: the dead layers go, the living one of the same source stays and shows.
func TestDeadMountOverALivingOne(t *testing.T) {
	s := newDeadMountScene(t, true)
	s.serve()
	for _, server := range []*kerneltest.Actor{s.serve(), s.serve()} {
		server.Kill()
	}
	_, f := s.only()
	actions, refusals := s.plan()
	if f.Details.Place != fault.PlaceHostPath || f.Details.Repair != fault.Unmount || len(actions) != 2 || len(refusals) != 0 {
		t.Fatalf("finding %+v, plan %+v, refusals %q", f, actions, refusals)
	}
	// A program that is killed after the first of two ends the same.
	if _, err := s.Inspector.Open()(t.Context(), actions[0]); err != nil || s.layers() != 2 {
		t.Fatalf("%v, %d layers", err, s.layers())
	}
	if again, _ := s.plan(); len(again) != 1 || !again[0].Mount.Same(*actions[1].Mount) {
		t.Errorf("plan after the first: %+v", again)
	}
	if proof, err := s.Inspector.Verify(t.Context(), actions); err != nil || proof.Healed {
		t.Errorf("half way: %+v, %v", proof, err)
	}
	if done, err := s.Inspector.Open()(t.Context(), actions[0]); err != nil || !done.Already {
		t.Errorf("once more: %+v, %v", done, err)
	}
	if proof := s.run(actions[1:]); !proof.Healed || s.layers() != 1 {
		t.Errorf("proof %+v, %d layers", proof, s.layers())
	}
	if survey, err := s.Inspector.Inspect(t.Context(), mountstate.Scope{}); err != nil || len(survey.Broken()) != 0 {
		t.Errorf("%+v, %v", survey, err)
	}
}

// TestDeadMountBehindALink: a hostPath may lead to the dead mount by a symbolic link, as below /var/run.
func TestDeadMountBehindALink(t *testing.T) {
	for name, below := range map[string]string{"to the mount": "", "to a directory above": "above"} {
		t.Run(name, func(t *testing.T) {
			s := newDeadMountScene(t, true)
			link := filepath.Join(t.TempDir(), "link")
			to, path := s.at, link
			if below != "" {
				to, path = filepath.Dir(s.at), filepath.Join(link, filepath.Base(s.at))
			}
			s.must(os.Symlink(to, link))
			s.Pod.Spec.Volumes[len(s.Pod.Spec.Volumes)-1].HostPath.Path = path
			s.serve().Kill()
			v, f := s.only()
			if f.Code != fault.DisconnectedFUSE || f.Mount.Point != s.at || v.Evidence.Point != s.at || v.Evidence.Link != path {
				t.Errorf("finding %+v of %+v", f, v.Evidence.Volume)
			}
		})
	}
}

// TestDeadMountThatStays has each of the conditions be false.
func TestDeadMountThatStays(t *testing.T) {
	other := func(s *deadMountScene, spec corev1.PodSpec) {
		uid := "22222222-aaaa-bbbb-cccc-000000000002"
		s.must(os.MkdirAll(s.Node.PodDir(uid), 0o755))
		s.Inspector.Pods = pods{string(s.Pod.UID): s.Pod, uid: {ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "user"}, Spec: spec}}
	}
	for name, c := range map[string]struct {
		set    func(s *deadMountScene)
		reason fault.RefusalReason
		text   string
	}{
		"nothing beneath":        {func(*deadMountScene) {}, fault.NodeMount, "writes go to the node's own disk"},
		"a dead one beneath":     {func(s *deadMountScene) { s.beneath = s.serve() }, fault.NodeMount, "writes go to the node's own disk"},
		"another source beneath": {func(s *deadMountScene) { s.must(sys.NewMount("mem", s.at, "tmpfs", "")) }, fault.NodeMount, "writes go to the node's own disk"},
		"another pod uses it": {func(s *deadMountScene) {
			s.deletePod()
			other(s, corev1.PodSpec{Volumes: []corev1.Volume{s.hostPath("x")}})
		}, fault.InUse, "pod other/user uses it"},
		"another pod uses it by a link": {func(s *deadMountScene) {
			s.deletePod()
			link := filepath.Join(s.t.TempDir(), "link")
			s.must(os.Symlink(s.at, link))
			other(s, corev1.PodSpec{Volumes: []corev1.Volume{{Name: "x", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: link + "/dir"}}}}})
		}, fault.InUse, "pod other/user uses it"},
		"another pod has a volume that is a link": {func(s *deadMountScene) {
			s.deletePod()
			other(s, corev1.PodSpec{})
			place := s.Node.VolumePoint(kubelet.Volume{PodUID: "22222222-aaaa-bbbb-cccc-000000000002", Plugin: kubelet.CSIPlugin, Name: "v"})
			s.must(errors.Join(os.MkdirAll(filepath.Dir(place), 0o755), os.Symlink(s.at, place)))
		}, fault.InUse, "pod other/user uses it"},
		"a pod that is not known": {func(s *deadMountScene) {
			s.deletePod()
			s.must(os.MkdirAll(s.Node.PodDir("33333333-aaaa-bbbb-cccc-000000000003"), 0o755))
		}, fault.InUse, "is not known"},
		"a process of the pod": {func(s *deadMountScene) { s.deletePod(); s.podProcess() }, fault.PodGoes, "control group of the pod"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newDeadMountScene(t, true)
			c.set(s)
			top := s.serve()
			if s.beneath != nil {
				s.beneath.Kill()
			}
			top.Kill()
			before := s.layers()
			_, f := s.only()
			if f.Details.Repair != "" || f.Details.Refusal.Reason != c.reason || !strings.Contains(f.Details.Refusal.Text, c.text) {
				t.Errorf("finding %+v", f)
			}
			if actions, refusals := s.plan(); len(actions) != 0 || len(refusals) != 1 || !strings.HasPrefix(refusals[0], "the mount at ") {
				t.Errorf("plan %+v, refusals %q", actions, refusals)
			}
			forged := fault.Action{Kind: fault.Unmount, Mount: &f.Mount, Pod: &fault.Pod{UID: string(s.Pod.UID)}}
			if _, err := s.Inspector.Open()(t.Context(), forged); !errors.Is(err, volume.ErrRefused) || s.layers() != before {
				t.Errorf("forged: %v, %d layers, %d before", err, s.layers(), before)
			}
		})
	}
}

// TestForgedRemovals: no action removes a mount that is alive, of another volume, or not the one that was planned.
func TestForgedRemovals(t *testing.T) {
	s := newDeadMountScene(t, false)
	s.serve().Kill()
	s.deletePod()
	actions, _ := s.plan()
	if len(actions) != 1 {
		t.Fatalf("plan %+v", actions)
	}
	s.must(systest.UnmountPath(s.at, true))
	s.serve()
	survey := s.survey(mountstate.Scope{})
	if len(survey.Volumes) != 1 || survey.Volumes[0].Verdict.Code != fault.StuckTermination {
		t.Fatalf("volumes %+v", survey.Volumes)
	}
	living := survey.Volumes[0].Evidence.Mount
	point := *actions[0].Mount
	point.ID, point.MountInfoID, point.ParentID = living.Unique, living.ID, living.Parent
	root := point
	root.Point = s.Node.PodsDir()
	for name, m := range map[string]fault.Mount{"the living one": point, "another place": root} {
		a := actions[0]
		a.Mount = &m
		_, _ = s.Inspector.Open()(t.Context(), a)
		if s.layers() != 1 {
			t.Errorf("%s: the living mount is gone", name)
		}
	}
	if done, err := s.Inspector.Open()(t.Context(), actions[0]); err == nil && !done.Already || s.layers() != 1 {
		t.Errorf("the planned one, which is gone: %+v, %v, %d layers", done, err, s.layers())
	}
}
