// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
	"kubediag.org/kubediag/internal/repair/repairtest"
)

// fakeInspector plays package volume: what it sees, what it would do about each volume by name, and what it was told to
// do.
type fakeInspector struct {
	survey  volume.Survey
	plans   map[string]plannedRepair
	err     error // of everything
	refuses error // of each action
	proof   volume.Proof

	asked    mountstate.Scope
	options  volume.PlanOptions
	applied  []fault.Action
	verified []fault.Action
}

// plannedRepair is what the judge would do about a volume.
type plannedRepair struct {
	actions  []fault.Action
	refusals []string
}

func (j *fakeInspector) Inspect(_ context.Context, s mountstate.Scope) (*volume.Survey, error) {
	j.asked = s
	return &j.survey, j.err
}

func (j *fakeInspector) Plan(_ context.Context, v *volume.Health, o volume.PlanOptions) ([]fault.Action, []string, error) {
	j.options = o
	return j.plans[v.Evidence.Name].actions, j.plans[v.Evidence.Name].refusals, nil
}

func (j *fakeInspector) Open(...string) func(context.Context, fault.Action) (fault.Applied, error) {
	return func(_ context.Context, a fault.Action) (fault.Applied, error) {
		j.applied = append(j.applied, a)
		return fault.Applied{Message: "replaced"}, j.refuses
	}
}

func (j *fakeInspector) Verify(_ context.Context, actions []fault.Action) (volume.Proof, error) {
	j.verified = actions
	return j.proof, j.err
}

// rebindWorld is a pod with a claim that app mounts, and a judge.
type rebindWorld struct {
	*fakeInspector
	pod     *corev1.Pod
	pods    *kubelettest.Pods
	healer  *RebindRecoverer
	request processor.Request
}

func newRebindWorld() *rebindWorld {
	w := &rebindWorld{fakeInspector: &fakeInspector{plans: map[string]plannedRepair{}, proof: volume.Proof{Healed: true}}, pod: kubelettest.NewPod(), pods: &kubelettest.Pods{}}
	w.pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/data"}}
	w.pods.Set(w.pod)
	w.healer = &RebindRecoverer{Pods: w.pods, Inspector: w.fakeInspector}
	w.request = processor.Request{Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: w.pod.Namespace, Name: w.pod.Name}}
	return w
}

// breakVolume adds a broken volume and gives the action that would replace its mount.
func (w *rebindWorld) breakVolume(name string) fault.Action {
	id := 100 + len(w.survey.Volumes)
	health := &volume.Health{}
	health.Verdict.Code, health.Replacement.NoSourceReason = fault.DisconnectedFUSE, "nothing is staged"
	health.Evidence.Volume = volume.Volume{
		Pod: fault.Pod{Namespace: w.pod.Namespace, Name: w.pod.Name, UID: string(w.pod.UID)}, Plugin: kubelet.CSIPlugin, Name: name,
		Point: "/p/" + name,
		Mount: mountns.Mount{
			Mount:  mountinfo.Mount{ID: id, Parent: 1, Minor: 77, Root: "/" + name, Point: "/p/" + name, FSType: "fuse.x"},
			Unique: uint64(1000 + id), Namespace: mountns.Namespace{Inode: 42},
		},
	}
	w.survey.Volumes = append(w.survey.Volumes, health)
	a := fault.Action{
		Kind: fault.Replace, Target: health.Evidence.Point, Mount: &health.Findings()[0].Mount, Pod: &health.Evidence.Pod, For: []fault.Key{health.Findings()[0].Key()}, Safety: "safe", Loss: "nothing",
	}
	w.plans[name] = plannedRepair{actions: []fault.Action{a}}
	return a
}

// inContainer is an action like another one, about the mount that a container has at a place.
func inContainer(a fault.Action, container, point string) fault.Action {
	m := *a.Mount
	m.ID, m.Point, m.Namespace = 5000, point, 43
	key := a.Key()
	key.Container, key.Place = container, point
	a.For, a.Target, a.Mount = []fault.Key{key}, point, &m
	return a
}

func (w *rebindWorld) planRepair(t *testing.T) repair.Part {
	t.Helper()
	p, err := w.healer.Plan(t.Context(), w.request)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// throughJournal is a plan as it comes back from the journal.
func throughJournal(t *testing.T, p repair.Part) (q repair.Part) {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &q); err != nil {
		t.Fatal(err)
	}
	return q
}

// TestRepairsWhatCanBeRepaired also reports what is not, and what else has the file system.
func TestRepairsWhatCanBeRepaired(t *testing.T) {
	t.Parallel()
	w := newRebindWorld()
	action, c := w.breakVolume("pvc-a"), w.breakVolume("pvc-c")
	w.breakVolume("pvc-b")
	w.survey.Volumes[0].Surroundings.SharedWith = []fault.Pod{{Namespace: "other", Name: "db", UID: "9"}}
	w.plans["pvc-b"] = plannedRepair{refusals: []string{"the mount of pvc-b stays: nothing is staged"}}
	inner := inContainer(action, "app", "/data")
	w.plans["pvc-a"] = plannedRepair{actions: []fault.Action{action, inner}}
	plan := throughJournal(t, w.planRepair(t))
	var got []string
	for _, x := range plan.Actions {
		got = append(got, fmt.Sprintf("%s %s mnt:[%d] %s %s %s", x.Kind, x.Target, x.Mount.Namespace, x.Key().Container, x.Safety, x.Loss))
	}
	want := []string{"Replace /p/pvc-a mnt:[42]  safe nothing", "Replace /data mnt:[43] app safe nothing", "Replace /p/pvc-c mnt:[42]  safe nothing"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("actions (-want +got):\n%s", diff)
	}
	if len(plan.Findings) != 2 || plan.Findings[0].Volume != "pvc-a" || plan.Findings[1].Volume != "pvc-c" {
		t.Errorf("findings of the plan: %+v", plan.Findings)
	}
	for _, x := range plan.Actions {
		if done, err := w.healer.apply(t.Context(), w.request, x, w.healer.Inspector.Open()); err != nil || done.Message != "replaced" {
			t.Errorf("apply: %+v, %v", done, err)
		}
	}
	for i, want := range []fault.Action{action, inner, c} {
		if got := w.applied[i]; *got.Mount != *want.Mount || got.Pod.UID != string(w.pod.UID) || got.Kind != fault.Replace {
			t.Errorf("applied %+v, want %+v", got, want)
		}
	}
	w.proof.Evidence = []string{"is alive", "is alive inside", "is alive, too"}
	result, err := processortest.Prove(t.Context(), w.healer, w.request, plan)
	if err != nil {
		t.Fatal(err)
	}
	if text := result.Values[keyRebindResult]; text != `replaced the mount at "/p/pvc-a", which was broken by DisconnectedFUSE: is alive; left alone: `+
		`the mount of pvc-b stays: nothing is staged` {
		t.Errorf("result %q", text)
	}
	if !strings.Contains(result.Values[keyRebindResults], `container \"app\"`) || result.Values[keyRebindSharedWith] != `[{"namespace":"other","name":"db","uid":"9"}]` ||
		!strings.Contains(result.Values[keyRebindRefusals], "pvc-b") || result.Values[KeyRebindRunningAfter] != "" {
		t.Errorf("values %q", result.Values)
	}
	var states []string
	for _, f := range result.Findings {
		states = append(states, fmt.Sprint(f.Volume, " ", f.Healed))
	}
	if diff := cmp.Diff([]string{"pvc-a true", "pvc-c true", "pvc-b false"}, states); diff != "" || len(w.verified) != 3 {
		t.Errorf("findings (-want +got):\n%s, %d actions verified", diff, len(w.verified))
	}
}

func TestReportsWhyNothingIsRepaired(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set      func(w *rebindWorld)
		want     string
		findings int
	}{
		"healthy": {func(w *rebindWorld) { w.survey.Volumes = []*volume.Health{{}} }, "no broken volume: 1 volumes", 0},
		"refused": {func(w *rebindWorld) {
			w.breakVolume("a")
			w.plans["a"] = plannedRepair{refusals: []string{"first reason", "second reason"}}
		}, "no volume of pod default/web is repaired: first reason; second reason", 1},
		"no say": {func(w *rebindWorld) { w.breakVolume("a"); w.plans["a"] = plannedRepair{} }, "no repair is known", 1},
		"another pod's": {func(w *rebindWorld) {
			w.breakVolume("a")
			w.survey.Volumes[0].Evidence.Pod.UID = "other"
		}, "no broken volume", 0},
		"an action of another pod's": {func(w *rebindWorld) {
			a := w.breakVolume("a")
			a.Pod = &fault.Pod{UID: "other"}
			w.plans["a"] = plannedRepair{actions: []fault.Action{a}}
		}, `of the pod with UID "other"`, 1},
		"a container that does not mount it": {func(w *rebindWorld) { w.breakVolume("a"); w.request.Pod.Container = "sidecar" }, "no broken volume", 0},
		"being deleted":                      {func(w *rebindWorld) { w.breakVolume("a"); w.pod.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, "is being deleted", 0},
		"ended":                              {func(w *rebindWorld) { w.breakVolume("a"); w.pod.Status.Phase = corev1.PodSucceeded }, "has ended (Succeeded)", 0},
		"on another node":                    {func(w *rebindWorld) { w.breakVolume("a"); w.request.Node = "other" }, `this is node "other"`, 0},
		"incomplete":                         {func(w *rebindWorld) { w.survey.Unknown.Gaps = []mountstate.Gap{{What: "mnt:[9]", Why: "it went"}} }, "not looked at: mnt:[9]: it went", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRebindWorld()
			c.set(w)
			w.pods.Set(w.pod)
			p := w.planRepair(t)
			if !strings.Contains(p.NotApplicable, c.want) || len(p.Actions) > 0 || len(p.Findings) != c.findings {
				t.Errorf("not applicable %q, want %q; %d actions, findings %+v", p.NotApplicable, c.want, len(p.Actions), p.Findings)
			}
		})
	}
}

// TestOutsideSelectsNothing: parameters and results of earlier operations reach package volume as a name that narrows
// and a permission, and in no other way.
func TestOutsideSelectsNothing(t *testing.T) {
	t.Parallel()
	w := newRebindWorld()
	action := w.breakVolume("pvc-a")
	w.request.Values = map[string]string{
		volume.ParamVolume: "pvc-a", paramRebindAbort: "true",
		"diagnoser.kubernetes.volume_health.list": `[{"pod":{"uid":"other"},"point":"/etc","source":{"path":"/root"}}]`,
		"collector.kubernetes.pod.detail":         `{"metadata":{"uid":"other"}}`, "pod.name": "other", "device": "0:1",
	}
	plan := w.planRepair(t)
	if !reflect.DeepEqual(w.asked, mountstate.Scope{PodUIDs: []string{string(w.pod.UID)}, Volume: "pvc-a"}) || !w.options.Abort {
		t.Errorf("asked %+v, %+v", w.asked, w.options)
	}
	if len(plan.Actions) != 1 || *plan.Actions[0].Mount != *action.Mount {
		t.Errorf("actions %+v", plan.Actions)
	}
	w.request.Values = nil
	if w.planRepair(t); w.options.Abort {
		t.Error("to abort is permitted, though nobody asked")
	}
	abort := plan.Actions[0]
	abort.Kind = fault.Abort
	if _, err := w.healer.apply(t.Context(), w.request, abort, w.healer.Inspector.Open()); !processor.IsStalled(err) || !strings.Contains(err.Error(), paramRebindAbort) || len(w.applied) > 0 {
		t.Errorf("an abort that nobody asks for: %v", err)
	}
	// The pod's UID is that of the pod as it is, whatever the plan was made for.
	namesake := w.pod.DeepCopy()
	namesake.UID = "namesake"
	w.pods.Set(namesake)
	w.refuses = fmt.Errorf("%w: no mount of this pod", volume.ErrRefused)
	if _, err := w.healer.apply(t.Context(), w.request, plan.Actions[0], w.healer.Inspector.Open()); !processor.IsStalled(err) || w.applied[0].Pod.UID != "namesake" {
		t.Errorf("a pod that was replaced: %v, %+v", err, w.applied)
	}
	for name, passing := range map[string]error{"no answer": volume.ErrHung, "in use": volume.ErrInUse} {
		w.refuses = fmt.Errorf("%w: %w", volume.ErrRefused, passing)
		_, err := w.healer.apply(t.Context(), w.request, plan.Actions[0], w.healer.Inspector.Open())
		if waiting, ok := errors.AsType[*processor.WaitingError](err); !ok || waiting.After <= 0 || processor.IsStalled(err) {
			t.Errorf("%s: %v, want another try after a while", name, err)
		}
	}
	if _, err := processortest.Prove(t.Context(), w.healer, w.request, plan); !processor.IsStalled(err) || !strings.Contains(err.Error(), "it was replaced") {
		t.Errorf("verify of a pod that was replaced: %v", err)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	for key, value := range map[string]string{paramRebindAbort: "yes", paramRebindBringForward: "1", ParamRebindWaitSeconds: "soon"} {
		w := newRebindWorld()
		w.request.Values = map[string]string{key: value}
		_, planned := w.healer.Plan(t.Context(), w.request)
		_, applied := w.healer.apply(t.Context(), w.request, fault.Action{Kind: fault.Replace}, w.healer.Inspector.Open())
		_, verified := processortest.Prove(t.Context(), w.healer, w.request, repair.Part{})
		for _, err := range []error{planned, applied, verified} {
			if !processor.IsStalled(err) || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), value) {
				t.Errorf("%s=%s: %v", key, value, err)
			}
		}
	}
	w := newRebindWorld()
	for name, a := range map[string]fault.Action{`"Reboot"`: {Kind: "Reboot"}, "no mount": {Kind: fault.Replace}, paramRebindAbort: {Kind: fault.Abort}} {
		if _, err := w.healer.apply(t.Context(), w.request, a, w.healer.Inspector.Open()); !processor.IsStalled(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("action %+v: %v", a, err)
		}
	}
	w.breakVolume("a")
	good := w.planRepair(t)
	for name, change := range map[string]func(p *repair.Part){
		"notes":      func(p *repair.Part) { p.Notes = nil },
		"no pod":     func(p *repair.Part) { p.Notes = map[string]string{repair.StateNote: "{}"} },
		"no actions": func(p *repair.Part) { p.Actions = nil },
	} {
		p := throughJournal(t, good)
		change(&p)
		if _, err := processortest.Prove(t.Context(), w.healer, w.request, p); !processor.IsStalled(err) {
			t.Errorf("plan with bad %s: %v", name, err)
		}
	}
	w.proof = volume.Proof{NotHealed: []string{"it is dead still"}}
	if _, err := processortest.Prove(t.Context(), w.healer, w.request, good); !processor.IsStalled(err) || !strings.Contains(err.Error(), "it is dead still") {
		t.Errorf("not healed: %v", err)
	}
	w.refuses = volume.ErrHung
	if _, err := w.healer.apply(t.Context(), w.request, good.Actions[0], w.healer.Inspector.Open()); !errors.Is(err, volume.ErrHung) || processor.IsStalled(err) {
		t.Errorf("no answer: %v, want one that is tried again", err)
	}
	w.err = errors.New("no mount table")
	if _, err := w.healer.Plan(t.Context(), w.request); !errors.Is(err, w.err) || processor.IsStalled(err) {
		t.Errorf("nothing seen: %v", err)
	}
}

// TestAbortAloneHealsNothing: what hung is dead then.
func TestAbortAloneHealsNothing(t *testing.T) {
	t.Parallel()
	w := newRebindWorld()
	a := w.breakVolume("a")
	a.Kind, a.Loss = fault.Abort, "data in flight"
	w.plans["a"] = plannedRepair{actions: []fault.Action{a}, refusals: []string{"no source"}}
	w.request.Values = map[string]string{paramRebindAbort: "true"}
	plan := throughJournal(t, w.planRepair(t))
	if len(plan.Actions) != 1 || plan.Actions[0].Kind != fault.Abort || plan.Actions[0].Loss != "data in flight" || len(plan.Findings) > 0 {
		t.Fatalf("plan %+v", plan)
	}
	if _, err := w.healer.apply(t.Context(), w.request, plan.Actions[0], w.healer.Inspector.Open()); err != nil || w.applied[0].Kind != fault.Abort {
		t.Errorf("apply: %v, %+v", err, w.applied)
	}
	result, err := processortest.Prove(t.Context(), w.healer, w.request, plan)
	if err != nil || !strings.Contains(result.Values[keyRebindResult], "aborted the connection") || len(result.Findings) != 1 || result.Findings[0].Healed {
		t.Errorf("result %+v, %v", result, err)
	}
}

// onePodRuntime is a runtime with one container that never started.
type onePodRuntime struct{}

func (onePodRuntime) Records(_ context.Context, uid, container string) ([]cri.Container, error) {
	return []cri.Container{{ID: container + "-1", PodUID: uid, Name: container, Exited: true, ExitCode: 128}}, nil
}

func (onePodRuntime) Remove(context.Context, cri.Container) error { return nil }

// TestBringsTheStartForward of containers that mount what is replaced, and waits for them.
func TestBringsTheStartForward(t *testing.T) {
	t.Parallel()
	w := newRebindWorld()
	w.healer.Runtime = onePodRuntime{}
	w.breakVolume("pvc-a")
	failing := w.pod.DeepCopy()
	failing.Status.ContainerStatuses = []corev1.ContainerStatus{
		kubelettest.Failing("app", "transport endpoint is not connected"), kubelettest.Failing("sidecar", "another reason"),
	}
	w.pods.Set(failing)
	plan := w.planRepair(t)
	if len(plan.Actions) != 2 || plan.Actions[1].Kind != fault.RemoveContainerRecord || plan.Actions[1].Record != "app-1" {
		t.Fatalf("actions %+v, want the record of app alone", plan.Actions)
	}
	e := repairtest.NewEngine()
	e.Records = w.healer.restarter()
	if done, err := repairtest.Apply(t.Context(), e, w.request, w.healer, plan.Actions[1]); err != nil || done.Message != "removed" {
		t.Errorf("removal: %+v, %v", done, err)
	}
	w.request.Values = map[string]string{ParamRebindWaitSeconds: "1"}
	if _, err := processortest.Prove(t.Context(), w.healer, w.request, plan); !processor.IsStalled(err) || !strings.Contains(err.Error(), `container "app" is still not running`) {
		t.Errorf("a container that stays: %v", err)
	}
	w.request.Values = map[string]string{ParamRebindWaitSeconds: "0"}
	result, err := processortest.Prove(t.Context(), w.healer, w.request, plan)
	if err != nil || result.Findings[0].Healed || !slices.Contains(result.Findings[0].Evidence, processor.NotAwaitedNote) {
		t.Errorf("a container that is not waited for: %+v, %v", result, err)
	}
	w.request.Values = nil
	w.pods.Set(w.pod)
	result, err = processortest.Prove(t.Context(), w.healer, w.request, plan)
	if err != nil || result.Values[KeyRebindRunningAfter] == "" || !result.Findings[0].Healed {
		t.Errorf("a container that runs: %+v, %v", result, err)
	}
	w.request.Values = map[string]string{paramRebindBringForward: "false"}
	w.pods.Set(failing)
	if p := w.planRepair(t); len(p.Actions) != 1 {
		t.Errorf("actions %+v, want no removal that is not wanted", p.Actions)
	}
}

// TestWaitsForInitContainersFirst: the others cannot start before them, and have time while one runs.
func TestWaitsForInitContainersFirst(t *testing.T) {
	t.Parallel()
	waiting := func(name, reason string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
	}
	for name, c := range map[string]struct {
		init, app corev1.ContainerStatus
		mounts    bool // whether the init container mounts it, too
		want      []string
	}{
		"init container fails":   {waiting("init", "CrashLoopBackOff"), waiting("app", "PodInitializing"), true, []string{"init"}},
		"another one runs":       {kubelettest.Running("init"), waiting("app", "PodInitializing"), false, nil},
		"another one is done":    {corev1.ContainerStatus{Name: "init"}, waiting("app", "CreateContainerError"), false, []string{"app"}},
		"nothing can be mounted": {waiting("init", "PodInitializing"), waiting("app", "PodInitializing"), false, []string{"app"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRebindWorld()
			w.breakVolume("pvc-a")
			init := corev1.Container{Name: "init"}
			if c.mounts {
				init.VolumeMounts = w.pod.Spec.Containers[0].VolumeMounts
			}
			w.pod.Spec.InitContainers = []corev1.Container{init}
			w.pod.Status.InitContainerStatuses, w.pod.Status.ContainerStatuses = []corev1.ContainerStatus{c.init}, []corev1.ContainerStatus{c.app}
			w.pods.Set(w.pod)
			m, err := loadRebindState(w.planRepair(t))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, a := range m.Containers {
				got = append(got, a.Container)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("waits for %q, want %q", got, c.want)
			}
		})
	}
}

// TestPlanIsBounded for a pod with more broken mounts than one run replaces.
func TestPlanIsBounded(t *testing.T) {
	t.Parallel()
	w := newRebindWorld()
	for n := range maxActions + 3 {
		w.breakVolume(fmt.Sprint("pvc-", n))
	}
	p := w.planRepair(t)
	m, err := loadRebindState(p)
	if err != nil || len(p.Actions) != maxActions || len(m.Refusals) != 3 || !strings.Contains(m.Refusals[0], "another run") || len(m.Left) != 3 {
		t.Errorf("%d actions, notes %+v, %v", len(p.Actions), m, err)
	}
}

func TestUnrepairable(t *testing.T) {
	t.Parallel()
	w := newRebindWorld()
	j, uid := &UnrepairableJudge{Inspector: w.fakeInspector}, string(w.pod.UID)
	findings, reasons, err := j.Unrepairable(t.Context(), uid)
	if err != nil || len(findings) > 0 || len(reasons) != 1 || !slices.Equal(w.asked.PodUIDs, []string{uid}) {
		t.Errorf("healthy: %+v, %q, %v, asked %+v", findings, reasons, err, w.asked)
	}
	w.breakVolume("a")
	if findings, reasons, err = j.Unrepairable(t.Context(), uid); err != nil || len(findings) > 0 || !strings.Contains(reasons[1], `"a" can be repaired`) {
		t.Errorf("what can be repaired: %+v, %q, %v", findings, reasons, err)
	}
	w.plans["a"] = plannedRepair{refusals: []string{"no source"}}
	if findings, reasons, err = j.Unrepairable(t.Context(), uid); err != nil || len(findings) != 1 || !slices.Equal(reasons, []string{"no source"}) || w.options.Abort {
		t.Errorf("what cannot: %+v, %q, %v", findings, reasons, err)
	}
	w.survey.Volumes[0].Evidence.Pod.UID = "other"
	if findings, _, err = j.Unrepairable(t.Context(), uid); err != nil || len(findings) > 0 {
		t.Errorf("another pod's: %+v, %v", findings, err)
	}
	if _, _, err := j.Unrepairable(t.Context(), ""); err == nil {
		t.Error("no pod: no error")
	}
	w.err = errors.New("no mount table")
	if _, _, err := j.Unrepairable(t.Context(), uid); !errors.Is(err, w.err) {
		t.Errorf("nothing seen: %v", err)
	}
}
