// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package registry

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	processors "kubediag.org/kubediag/internal/processor/subpath"
)

// podWithSubPath is the pod of a FUSE volume, whose container has directory "sub" of it, too. All is well.
type podWithSubPath struct {
	*volumetest.Scene
	*asker
	point string
	spec  v1.DiagnosisSpec
}

func newPodWithSubPath(t *testing.T) *podWithSubPath {
	t.Helper()
	p := &podWithSubPath{Scene: volumetest.New(t)}
	mounts := &p.Pod.Spec.Containers[0].VolumeMounts
	*mounts = append(*mounts, corev1.VolumeMount{Name: "claim", MountPath: "/sub", SubPath: "sub"})
	p.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Running("app"), kubelettest.Running("sidecar")}
	p.Pods.Set(p.Pod)
	must(t, os.Mkdir(filepath.Join(p.Scene.Point, "sub"), 0o755))
	p.point = p.Scene.Scene.Point(p.Pod, volumetest.Volume, "app", 1)
	p.Bind(filepath.Join(p.Scene.Point, "sub"), p.point)
	t.Cleanup(func() { _ = systest.UnmountPath(p.point, true) })
	p.Start() // a container that runs has a copy of the volume
	p.asker = newAsker(t, Deps{Pods: p.Pods, Kubelet: p.Node, Volumes: p.Inspector, Lister: subPathLister{p}})
	p.spec.PodReference = &v1.PodReference{Namespace: p.Pod.Namespace, Name: p.Pod.Name}
	return p
}

// subPathLister has the one pod.
type subPathLister struct{ p *podWithSubPath }

func (l subPathLister) PodsHere() []*corev1.Pod { return []*corev1.Pod{l.p.Pod} }

// isBound reports whether something is mounted at the place of the bind.
func (p *podWithSubPath) isBound(t *testing.T) bool {
	t.Helper()
	table, err := mountns.Table(0)
	must(t, err)
	return len(table.All(p.point)) > 0
}

// scan returns the codes of the binds that a scan of the node finds.
func (p *podWithSubPath) scan(t *testing.T) (codes []fault.Code) {
	t.Helper()
	survey, err := subpath.Scan(t.Context(), p.Node, subpath.Sources{Prober: p.Inspector.Prober}, p.PodByUID)
	must(t, err)
	for _, found := range survey.Found {
		codes = append(codes, found.Finding(0).Code)
	}
	return codes
}

// goes has the pod be deleted.
func (p *podWithSubPath) goes() {
	p.Pod.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Minute)}
	p.Pods.Set(p.Pod)
}

// actionsOf are the actions of a Diagnosis' last operation.
func actionsOf(d *v1.Diagnosis) (all []string) {
	for _, a := range d.Status.Operations[len(d.Status.Operations)-1].Actions {
		all = append(all, fmt.Sprint(a.Kind, " ", a.Target))
	}
	return all
}

// TestOneAnswerAboutASubPathOfFUSE: its directory was deleted by another client, and another was made there or not.
func TestOneAnswerAboutASubPathOfFUSE(t *testing.T) {
	want := []string{string(fault.StaleSubPath)}
	for name, c := range map[string]struct {
		answer sys.Errno
		again  bool
	}{
		"forgotten": {sys.ENOENT, false}, "forgotten and made again": {sys.ENOENT, true}, "stale": {sys.ESTALE, false},
		"stale and made again": {sys.ESTALE, true}, "unlinked": {0, false}, "unlinked and made again": {0, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPodWithSubPath(t)
			if d := p.ask(t, p.spec); d.Status.Outcome != v1.OutcomeNoFault || len(p.scan(t)) > 0 {
				t.Fatalf("before: %+v, scan %v", d.Status, p.scan(t))
			}
			p.Delete("sub", c.answer, c.again)
			if diff := cmp.Diff([]fault.Code{fault.StaleSubPath}, p.scan(t)); diff != "" {
				t.Errorf("scan (-want +got):\n%s", diff)
			}
			before := p.Mounts()
			unmount := []string{fmt.Sprint(fault.Unmount, " ", p.point)}
			for what, spec := range map[string]v1.DiagnosisSpec{"pod": p.spec, "node": {}} {
				spec.Mode = v1.ModePlan
				d := p.ask(t, spec)
				if diff := cmp.Diff(want, codes(d, v1.FaultPresent)); diff != "" || len(d.Status.Faults) != 1 {
					t.Errorf("%s: faults %+v (-want +got):\n%s", what, d.Status.Faults, diff)
				}
				if diff := cmp.Diff(unmount, actionsOf(d)); diff != "" {
					t.Errorf("%s: actions (-want +got):\n%s", what, diff)
				}
			}
			if diff := cmp.Diff(before, p.Mounts()); diff != "" {
				t.Errorf("looking has changed mounts (-before +after):\n%s", diff)
			}
			if d := p.ask(t, p.spec); d.Status.Outcome != v1.OutcomeHealed || p.isBound(t) {
				t.Errorf("repair: %+v, bound: %v", d.Status, p.isBound(t))
			}
			if d := p.ask(t, p.spec); d.Status.Outcome != v1.OutcomeNoFault || len(p.scan(t)) > 0 {
				t.Errorf("afterwards: %+v, scan %v", d.Status, p.scan(t))
			}
		})
	}
}

// TestHealthySubPathOfFUSEIsLeftAlone, also by a pod that goes, and where the daemon is the fault.
func TestHealthySubPathOfFUSEIsLeftAlone(t *testing.T) {
	for name, happen := range map[string]func(p *podWithSubPath){
		"healthy": func(*podWithSubPath) {}, "the pod goes": (*podWithSubPath).goes,
		"the daemon is dead": func(p *podWithSubPath) { p.Kill() },
		"the daemon hangs":   func(p *podWithSubPath) { p.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPodWithSubPath(t)
			happen(p)
			d := p.ask(t, p.spec)
			for _, f := range d.Status.Faults {
				if f.Code == string(fault.StaleSubPath) {
					t.Errorf("fault %+v", f)
				}
			}
			if found := p.scan(t); len(found) > 0 || !p.isBound(t) {
				t.Errorf("scan %v, bound: %v", found, p.isBound(t))
			}
		})
	}
}

// TestDeadSubPathOfAPodThatGoes keeps the pod until its bind is unmounted.
func TestDeadSubPathOfAPodThatGoes(t *testing.T) {
	p := newPodWithSubPath(t)
	p.Delete("sub", sys.ENOENT, true)
	p.goes()
	end := p.runInPod(t)
	before := p.Mounts()
	d := p.ask(t, p.spec)
	if d.Status.Outcome != v1.OutcomeFaultFound || !strings.Contains(d.Status.Operations[len(d.Status.Operations)-1].Message, "in a control group of the pod") {
		t.Errorf("while a process of the pod runs: %+v", d.Status)
	}
	if diff := cmp.Diff(before, p.Mounts()); diff != "" {
		t.Errorf("while a process of the pod runs, mounts (-before +after):\n%s", diff)
	}
	end()
	p.spec.Mode = v1.ModePlan
	planned := p.ask(t, p.spec)
	if diff := cmp.Diff([]string{fmt.Sprint(fault.Unmount, " ", p.point)}, actionsOf(planned)); diff != "" {
		t.Fatalf("actions (-want +got):\n%s", diff)
	}
	if strings.Contains(fmt.Sprintf("%+v", planned.Status), "delete pod") {
		t.Errorf("a pod that is being deleted is to be deleted: %+v", planned.Status)
	}
	p.spec.Mode = v1.ModeRecover
	if d = p.ask(t, p.spec); d.Status.Outcome != v1.OutcomeHealed || p.isBound(t) {
		t.Errorf("repair: %+v, bound: %v", d.Status, p.isBound(t))
	}
	// There is no kubelet that takes down the rest.
	if d = p.ask(t, p.spec); len(d.Status.Faults) != 1 || d.Status.Faults[0].Code != string(fault.StuckTermination) || len(actionsOf(d)) > 0 {
		t.Errorf("once more: %+v", d.Status)
	}
}

// TestPlannedUnmountOfAnotherMount: between plan and repair another mount, which is alive, has come to the place of the dead
// bind.
func TestPlannedUnmountOfAnotherMount(t *testing.T) {
	p := newPodWithSubPath(t)
	p.Delete("sub", sys.ENOENT, true)
	p.goes()
	p.spec.Mode = v1.ModePlan
	p.spec.PlanHash = p.ask(t, p.spec).Status.Plan.Hash
	must(t, systest.UnmountPath(p.point, true))
	must(t, sys.BindMount(filepath.Join(p.Scene.Point, "sub"), p.point))
	before := p.Mounts()
	p.spec.Mode = v1.ModeRecover
	if d := p.ask(t, p.spec); d.Status.Outcome == v1.OutcomeHealed {
		t.Errorf("status %+v", d.Status)
	}
	if diff := cmp.Diff(before, p.Mounts()); diff != "" {
		t.Errorf("mounts (-before +after):\n%s", diff)
	}
}

// TestDeadSubPathIsUnmountedAlready, as by a repair that was killed after it, or by a person: to try again ends well.
func TestDeadSubPathIsUnmountedAlready(t *testing.T) {
	p := newPodWithSubPath(t)
	p.Delete("sub", sys.ENOENT, true)
	p.goes()
	recoverer := &processors.Recoverer{Pods: p.Pods, Kubelet: p.Node, Sources: subpath.Sources{Prober: p.Inspector.Prober}}
	request := processor.Request{Pod: processor.Pod{Namespace: p.Pod.Namespace, Name: p.Pod.Name}, Node: kubelettest.NodeName}
	plan, err := recoverer.Plan(t.Context(), request)
	must(t, err)
	if len(plan.Actions) != 1 {
		t.Fatalf("plan %+v, want one action", plan)
	}
	for _, already := range []bool{false, true} {
		done, err := recoverer.Apply(t.Context(), request, plan.Actions[0])
		if err != nil || done.Already != already {
			t.Fatalf("apply: %+v, %v, want already: %v", done, err, already)
		}
		plan.Applied = []fault.Applied{done}
		if _, err := processortest.Prove(t.Context(), recoverer, request, plan); err != nil {
			t.Errorf("verify: %v", err)
		}
	}
	p.Pods.Set(nil) // the pod has gone
	if _, err := processortest.Prove(t.Context(), recoverer, request, plan); err != nil {
		t.Errorf("verify once the pod has gone: %v", err)
	}
}

// runInPod has a process run in a control group of the pod.
func (p *podWithSubPath) runInPod(t *testing.T) (end func()) {
	t.Helper()
	group := kerneltest.ControlGroup(t, fmt.Sprintf("kubediag-%d-pod%s", os.Getpid(), p.Pod.UID))
	process := exec.Command("sleep", "1000")
	must(t, process.Start())
	kerneltest.JoinControlGroup(t, group, process.Process.Pid)
	end = func() {
		_ = process.Process.Kill()
		_ = process.Wait() // it was killed
		kerneltest.AwaitEmpty(t, group)
	}
	t.Cleanup(end)
	return end
}

// TestLastMountOfAFileSystemIsLeftAlone: the volume is unmounted already, so the dead bind may be the last mount of it.
func TestLastMountOfAFileSystemIsLeftAlone(t *testing.T) {
	p := newPodWithSubPath(t)
	p.Delete("sub", sys.ENOENT, true)
	p.goes()
	must(t, systest.UnmountPath(p.Scene.Point, true))
	must(t, systest.UnmountPath(p.Staging, true))
	before := p.Mounts()
	if found := p.scan(t); len(found) != 1 || found[0] != fault.StaleSubPath {
		t.Errorf("scan %v", found)
	}
	if d := p.ask(t, p.spec); d.Status.Outcome == v1.OutcomeHealed || !strings.Contains(fmt.Sprintf("%+v", d.Status), "can wait for the server") {
		t.Errorf("status %+v", d.Status)
	}
	if diff := cmp.Diff(before, p.Mounts()); diff != "" {
		t.Errorf("mounts (-before +after):\n%s", diff)
	}
}
