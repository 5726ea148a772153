// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package registry

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/faults/orphan/orphantest"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/store"
)

func TestMain(m *testing.M) {
	subprocess.Main(Jobs()...)
	volumetest.Main(m, orphantest.Roles, devicetest.Roles)
}

// asker runs Diagnoses that name no OperationSet, as the agent runs them.
type asker struct {
	store  store.Memory
	runner *pipeline.Runner
	asked  int
}

func newAsker(t *testing.T, d Deps) *asker {
	t.Helper()
	a := &asker{}
	must(t, a.store.Load(strings.NewReader(operations.Auto)))
	registry, err := New(d)
	must(t, err)
	a.runner, err = pipeline.New(pipeline.Options{Node: kubelettest.NodeName, DataRoot: t.TempDir(), Registry: registry, Store: &a.store})
	must(t, err)
	t.Cleanup(func() { _ = a.runner.Close() })
	return a
}

var must = kerneltest.Must

// ask runs one Diagnosis to its end.
func (a *asker) ask(t *testing.T, spec v1.DiagnosisSpec) *v1.Diagnosis {
	t.Helper()
	a.asked++
	d := &v1.Diagnosis{Spec: spec}
	d.APIVersion, d.Kind = v1.GroupVersion.String(), "Diagnosis"
	d.Namespace, d.Name, d.Spec.NodeName = "default", fmt.Sprint("d-", a.asked), kubelettest.NodeName
	text, err := store.YAML(d)
	must(t, err)
	must(t, a.store.Load(bytes.NewReader(text)))
	d, err = a.store.Diagnosis(d.Namespace, d.Name)
	must(t, err)
	done, err := a.runner.Run(t.Context(), d)
	must(t, err)
	return done
}

func codes(d *v1.Diagnosis, state v1.FaultState) (all []string) {
	for _, f := range d.Status.Faults {
		if f.State == state && !slices.Contains(all, f.Code) {
			all = append(all, f.Code)
		}
	}
	slices.Sort(all)
	return all
}

// brokenPod is the pod of a volume, whose container sidecar also has a subPath of a ConfigMap.
type brokenPod struct {
	*volumetest.Scene
	*asker
	app *kerneltest.Actor
	pod v1.DiagnosisSpec
}

func newBrokenPod(t *testing.T) *brokenPod {
	t.Helper()
	p := &brokenPod{Scene: volumetest.New(t)}
	p.Pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/x", SubPath: "key"}}
	p.Pods.Set(p.Pod)
	version := p.Update(p.Pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "one"})
	p.Bind(filepath.Join(version, "key"), p.Scene.Scene.Point(p.Pod, "configmap", "sidecar", 0))
	p.app = p.Start()
	p.asker = newAsker(t, Deps{Pods: p.Pods, Kubelet: p.Node, Volumes: p.Inspector, Lister: lister{p}})
	p.pod.PodReference = &v1.PodReference{Namespace: p.Pod.Namespace, Name: p.Pod.Name}
	return p
}

// damage has the source of the subPath deleted, and the volume's daemon die and come back.
func (p *brokenPod) damage() {
	p.Update(p.Pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
	p.Kill()
	p.Remount("new")
}

// both are the mounts of the host and of the container.
func (p *brokenPod) both() []map[string]bool {
	return []map[string]bool{p.Mounts(), p.MountsOf(p.app.PID)}
}

// lister has the one pod.
type lister struct{ p *brokenPod }

func (l lister) PodsHere() []*corev1.Pod { return []*corev1.Pod{l.p.Pod} }

// TestAutoHealsAPod of two families at once: first it shows the plan and changes nothing, then it does exactly that.
func TestAutoHealsAPod(t *testing.T) {
	p := newBrokenPod(t)
	p.damage()
	before := p.both()

	p.pod.Mode = v1.ModePlan
	d := p.ask(t, p.pod)
	if d.Status.Phase != v1.DiagnosisSucceeded || d.Status.Outcome != v1.OutcomePlanned || d.Status.Plan == nil || !d.Status.Plan.Lossless {
		t.Fatalf("plan: %+v", d.Status)
	}
	if diff := cmp.Diff(before, p.both()); diff != "" {
		t.Errorf("planning has changed mounts (-before +after):\n%s", diff)
	}
	both := []string{"DisconnectedFUSE", "StaleSubPath"}
	if diff := cmp.Diff(both, codes(d, v1.FaultPresent)); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	planned := d.Status.Operations[len(d.Status.Operations)-1].Actions

	p.pod.Mode, p.pod.PlanHash = v1.ModeRecover, d.Status.Plan.Hash
	d = p.ask(t, p.pod)
	if d.Status.Outcome != v1.OutcomeHealed {
		t.Fatalf("repair: %+v", d.Status)
	}
	if diff := cmp.Diff(both, codes(d, v1.FaultHealed)); diff != "" {
		t.Errorf("healed faults (-want +got):\n%s", diff)
	}
	var did []v1.Action
	for _, a := range d.Status.Operations[len(d.Status.Operations)-1].Actions {
		if a.Phase != v1.ActionDone || len(a.Calls) == 0 {
			t.Errorf("action %+v", a)
		}
		a.Phase, a.Message, a.Calls = v1.ActionPlanned, "", nil
		did = append(did, a)
	}
	if diff := cmp.Diff(planned, did); diff != "" {
		t.Errorf("actions (-planned +done):\n%s", diff)
	}
	if inside := p.Read(p.app); inside != "new" {
		t.Errorf("the container reads %q", inside)
	}
	if !strings.HasPrefix(d.Status.Summary, "Repaired ") || d.Status.Target != "pod default/web" || len(d.Status.Artifacts) != 2 {
		t.Errorf("summary %q of %q, artifacts %+v", d.Status.Summary, d.Status.Target, d.Status.Artifacts)
	}
	for key := range d.Status.OperationResults {
		if strings.HasPrefix(key, "collector.") {
			t.Errorf("%s is in the status", key)
		}
	}
	p.pod.PlanHash = ""
	if d = p.ask(t, p.pod); d.Status.Outcome != v1.OutcomeNoFault || d.Status.Phase != v1.DiagnosisSucceeded {
		t.Errorf("afterwards: %+v", d.Status)
	}
}

// TestAutoRefusesAnotherPlan: between the plan and the repair the pod got another stale mount.
func TestAutoRefusesAnotherPlan(t *testing.T) {
	p := newBrokenPod(t)
	p.Update(p.Pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
	p.pod.Mode = v1.ModePlan
	hash := p.ask(t, p.pod).Status.Plan.Hash
	p.Kill()
	p.Remount("new")
	before := p.both()
	p.pod.Mode, p.pod.PlanHash = v1.ModeRecover, hash
	d := p.ask(t, p.pod)
	c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete)
	if d.Status.Phase != v1.DiagnosisFailed || c.Reason != v1.ReasonPlanChanged || d.Status.Plan == nil || d.Status.Plan.Hash == hash {
		t.Errorf("status %+v", d.Status)
	}
	if diff := cmp.Diff(before, p.both()); diff != "" {
		t.Errorf("mounts (-before +after):\n%s", diff)
	}
}

// TestAutoRefusesWithANextStep the faults that it may not repair, and repairs the rest.
func TestAutoRefusesWithANextStep(t *testing.T) {
	p := newBrokenPod(t)
	p.Update(p.Pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
	p.Stop()
	d := p.ask(t, p.pod)
	if d.Status.Phase != v1.DiagnosisSucceeded || d.Status.Outcome != v1.OutcomeFaultFound {
		t.Fatalf("status %+v", d.Status)
	}
	if diff := cmp.Diff([]string{string(fault.HungMount)}, codes(d, v1.FaultPresent)); diff != "" {
		t.Errorf("faults that are left (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{string(fault.StaleSubPath)}, codes(d, v1.FaultHealed)); diff != "" {
		t.Errorf("healed faults (-want +got):\n%s", diff)
	}
	for _, part := range []string{"Repaired StaleSubPath", "HungMount", "Next: "} {
		if text := d.Status.Summary + d.Status.Operations[2].Message; !strings.Contains(text, part) {
			t.Errorf("%q does not say %q", text, part)
		}
	}
	if refused := d.Status.OperationResults["recover.kubernetes.auto.refused"]; !strings.Contains(refused, "volume_rebind.abort") {
		t.Errorf("refused %s", refused)
	}
}

// TestAutoSaysWhatTheKubeletSays about a pod whose mounts are well.
func TestAutoSaysWhatTheKubeletSays(t *testing.T) {
	p := newBrokenPod(t)
	p.Pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "app", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: `Back-off pulling image "x"`},
	}}
	p.Pods.Set(p.Pod)
	before := p.both()
	d := p.ask(t, p.pod)
	want := `It is not a mount: the kubelet says ImagePullBackOff about container "app" of pod default/web: Back-off pulling image "x"`
	if d.Status.Phase != v1.DiagnosisSucceeded || d.Status.Outcome != v1.OutcomeNoFault || d.Status.Summary != want || len(d.Status.Faults) > 0 {
		t.Errorf("status %+v", d.Status)
	}
	if diff := cmp.Diff(before, p.both()); diff != "" {
		t.Errorf("mounts (-before +after):\n%s", diff)
	}
}

// TestAutoHealsTheOrphansOfANode, where no pod is named.
func TestAutoHealsTheOrphansOfANode(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(orphantest.Gone)
	a := newAsker(t, Deps{Pods: &kubelettest.Pods{}, Kubelet: s.Node, Orphans: s.Inspector})
	planned := a.ask(t, v1.DiagnosisSpec{Mode: v1.ModePlan})
	before := s.Tree(orphantest.Gone)
	if planned.Status.Outcome != v1.OutcomePlanned || planned.Status.Target != "node "+kubelettest.NodeName {
		t.Fatalf("plan: %+v", planned.Status)
	}
	d := a.ask(t, v1.DiagnosisSpec{PlanHash: planned.Status.Plan.Hash, Parameters: map[string]string{"param.recover.kubernetes.orphaned_pods.limit": "1"}})
	if d.Status.Phase != v1.DiagnosisSucceeded || d.Status.Plan.Hash != planned.Status.Plan.Hash {
		t.Errorf("status %+v", d.Status)
	}
	if after := s.Tree(orphantest.Gone); len(after) >= len(before) {
		t.Errorf("of %q are left %q", before, after)
	}
	if d.Status.OperationResults["recover.kubernetes.orphaned_pods.result"] == "" {
		t.Errorf("results %v", d.Status.OperationResults)
	}
}

// TestAutoHealsTheNode with no pod named: the pods of the node are looked at.
func TestAutoHealsTheNode(t *testing.T) {
	p := newBrokenPod(t)
	p.damage()
	d := p.ask(t, v1.DiagnosisSpec{})
	if d.Status.Phase != v1.DiagnosisSucceeded || d.Status.Outcome != v1.OutcomeHealed {
		t.Fatalf("status %+v", d.Status)
	}
	if diff := cmp.Diff([]string{"DisconnectedFUSE", "StaleSubPath"}, codes(d, v1.FaultHealed)); diff != "" {
		t.Errorf("healed faults (-want +got):\n%s", diff)
	}
	if inside := p.Read(p.app); inside != "new" {
		t.Errorf("the container reads %q", inside)
	}
}
