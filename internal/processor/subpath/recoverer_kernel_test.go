// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
	"kubediag.org/kubediag/internal/repair/repairtest"
)

func TestMain(m *testing.M) { kerneltest.Main(m, roles) }

var must = kerneltest.Must

// repairScene is a pod with a bind that may be stale, and all that a recoverer needs.
type repairScene struct {
	*kubelettest.Scene
	pod     *corev1.Pod
	pods    *kubelettest.Pods
	healer  *Recoverer
	runtime *fakeRuntime
	request processor.Request
	point   string // of container app, index 0
}

// newRepairScene makes one with containers app and sidecar that have one subPath of the ConfigMap each, both bound.
func newRepairScene(t *testing.T) *repairScene {
	t.Helper()
	w := &repairScene{Scene: kubelettest.New(t), pod: kubelettest.NewPod(), pods: &kubelettest.Pods{}, runtime: &fakeRuntime{}}
	version := w.Update(w.pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "one"})
	for i, c := range []string{"app", "sidecar"} {
		w.pod.Spec.Containers[i].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/x", SubPath: "key"}}
		w.Bind(filepath.Join(version, "key"), w.Point(w.pod, "configmap", c, 0))
	}
	w.point = w.Point(w.pod, "configmap", "app", 0)
	w.pods.Set(w.pod)
	w.healer = &Recoverer{Pods: w.pods, Kubelet: w.Node, Runtime: w.runtime}
	w.request = processor.Request{Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: w.pod.Namespace, Name: w.pod.Name}}
	return w
}

// ask has a container, by its number, ask for one more subPath.
func (w *repairScene) ask(container int, volume, subPath string) {
	c := &w.pod.Spec.Containers[container]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: "/y", SubPath: subPath})
	w.pods.Set(w.pod)
}

// renew is an update of the ConfigMap.
func (w *repairScene) renew() {
	w.Update(w.pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
}

// rebind is the kubelet's next start of container app.
func (w *repairScene) rebind() {
	w.Bind(filepath.Join(w.Volume(w.pod, kubelettest.ConfigMap, "configmap"), "key"), w.point)
}

func (w *repairScene) set(statuses ...corev1.ContainerStatus) {
	w.pod.Status.ContainerStatuses = statuses
	w.pods.Set(w.pod)
}

func (w *repairScene) plan(t *testing.T) repair.Part {
	t.Helper()
	p, err := w.healer.Plan(t.Context(), w.request)
	must(t, err)
	return p
}

func (w *repairScene) apply(t *testing.T, p repair.Part) []string {
	t.Helper()
	var messages []string
	for _, a := range p.Actions {
		e := repairtest.NewEngine()
		e.Records = w.healer.restarter()
		done, err := repairtest.Apply(t.Context(), e, w.request, w.healer, a)
		must(t, err)
		messages = append(messages, done.Message)
	}
	return messages
}

// heal makes a plan, does it, and has it proved.
func (w *repairScene) heal(t *testing.T) (repair.Part, processor.Result) {
	t.Helper()
	p := w.plan(t)
	w.apply(t, p)
	result, err := processortest.Prove(t.Context(), w.healer, w.request, p)
	must(t, err)
	return p, result
}

// fakeRuntime has the records that it was given.
type fakeRuntime struct {
	records []cri.Container
	removed []string
	err     error
}

func (r *fakeRuntime) Records(_ context.Context, podUID, container string) ([]cri.Container, error) {
	return slices.DeleteFunc(slices.Clone(r.records), func(c cri.Container) bool { return c.PodUID != podUID || c.Name != container }), r.err
}

func (r *fakeRuntime) Remove(_ context.Context, c cri.Container) error {
	r.removed = append(r.removed, c.Name+" "+c.ID)
	if r.err == nil {
		r.records = slices.DeleteFunc(r.records, func(had cri.Container) bool { return had.ID == c.ID })
	}
	return r.err
}

func TestHeals(t *testing.T) {
	w := newRepairScene(t)
	w.renew()
	before := tableOf(t, 0)
	plan := w.plan(t)
	sidecar := w.Point(w.pod, "configmap", "sidecar", 0)
	if diff := cmp.Diff([]string{"Unmount " + w.point, "Unmount " + sidecar}, processortest.Targets(plan)); diff != "" {
		t.Fatalf("plan (-want +got):\n%s", diff)
	}
	holds(t, 0, before)
	a := plan.Actions[0]
	if a.Key().Volume != "configmap" || a.Mount == nil || a.Mount.Point != w.point || !strings.HasSuffix(a.Mount.Root, "/key//deleted") || a.Loss != "nothing" || !strings.Contains(a.Safety, "link count is 0") {
		t.Errorf("action = %+v", a)
	}
	if diff := cmp.Diff([]string{"unmounted", "unmounted"}, w.apply(t, plan)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	result, err := processortest.Prove(t.Context(), w.healer, w.request, plan)
	must(t, err)
	want := map[string]string{
		"recover.kubernetes.subpath_remount.result":  "Succeesfully umount " + w.point + " on host",
		"recover.kubernetes.subpath_remount.results": `["Succeesfully umount ` + w.point + ` on host","Succeesfully umount ` + sidecar + ` on host"]`,
	}
	if diff := cmp.Diff(want, result.Values); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if len(result.Findings) != 2 || !result.Findings[0].Healed || !result.Findings[1].Healed {
		t.Errorf("findings = %+v, want both healed", result.Findings)
	}
	holds(t, 0, before, w.repairs(plan, "configmap")...)
	healed := tableOf(t, 0)
	w.rebind()
	holds(t, 0, healed) // the kubelet keeps what it finds
	must(t, w.Start(w.point))
	if content, err := os.ReadFile(w.point); err != nil || string(content) != "two" {
		t.Errorf("after the next start: %q, %v, want the new content", content, err)
	}
	if again := w.plan(t); again.NotApplicable == "" || len(again.Actions) != 0 {
		t.Errorf("a second plan = %+v, want not applicable", again)
	}
}

// many is how many mounts a crowded node has.
var many = kerneltest.Fewer(20_000)

// crowd mounts as many more.
func (w *repairScene) crowd(t *testing.T) {
	t.Helper()
	for i := range many {
		dir := filepath.Join(w.Root, "crowd", strconv.Itoa(i))
		must(t, os.MkdirAll(dir, 0o755))
		must(t, mount.Bind(dir, dir))
	}
}

func TestHealsAmongManyMounts(t *testing.T) {
	w := newRepairScene(t)
	w.crowd(t)
	w.renew()
	before := tableOf(t, 0)
	if len(before) < many {
		t.Fatalf("there are only %d mounts", len(before))
	}
	p, _ := w.heal(t)
	holds(t, 0, before, w.repairs(p, "configmap")...)
}

func TestHealsOneContainerWhenAsked(t *testing.T) {
	w := newRepairScene(t)
	w.renew()
	w.request.Pod.Container = "sidecar"
	if diff := cmp.Diff([]string{"Unmount " + w.Point(w.pod, "configmap", "sidecar", 0)}, processortest.Targets(w.plan(t))); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func TestStackedMountIsTakenFromTheTop(t *testing.T) {
	w := newRepairScene(t)
	beneath, err := mount.Inspect(w.point)
	must(t, err)
	before := tableOf(t, 0)
	w.putStale(t, w.point)
	w.heal(t)
	if left, err := mount.Inspect(w.point); err != nil || !left.Same(beneath.ID) {
		t.Errorf("left at the point: %+v, %v, want the healthy mount beneath", left, err)
	}
	holds(t, 0, before) // it is not covered by another
}

func TestHealsInTheKubeletsNamespace(t *testing.T) {
	w := newRepairScene(t)
	holder := kerneltest.Start(t, "hold")
	node, err := (&kubelet.Finder{PID: holder.PID, Root: w.Root}).Node(t.Context())
	must(t, err)
	w.healer.Kubelet = node
	w.renew()
	outside, before := tableOf(t, 0), tableOf(t, holder.PID)
	plan := w.plan(t)
	var inside mount.State
	must(t, node.Do(t.Context(), func() (err error) { inside, err = mount.Inspect(w.point); return err }))
	if len(plan.Actions) != 2 || plan.Actions[0].Mount.ID != inside.UniqueID {
		t.Fatalf("plan = %+v, want the mount of the kubelet's namespace, %v", plan, inside)
	}
	// On the way, the plan is written down and read again.
	text, err := json.Marshal(plan)
	must(t, err)
	must(t, json.Unmarshal(text, &plan))
	w.apply(t, plan)
	_, err = processortest.Prove(t.Context(), w.healer, w.request, plan)
	must(t, err)
	holds(t, holder.PID, before, w.repairs(plan, "configmap")...)
	holds(t, 0, outside)
	t.Run("another namespace than planned", func(t *testing.T) {
		w.healer.Kubelet = w.Node
		before := tableOf(t, 0)
		if _, err := w.healer.Apply(t.Context(), w.request, plan.Actions[0]); !processor.IsStalled(err) || !strings.Contains(err.Error(), "mount namespace") {
			t.Errorf("error %v, want a stalled one about the namespace", err)
		}
		holds(t, 0, before)
	})
}

func TestSharedMountIsReported(t *testing.T) {
	w := newRepairScene(t)
	must(t, mount.SetPropagation(filepath.Dir(w.Root), mount.Shared, false))
	w.renew()
	if p := w.plan(t); !strings.Contains(p.Actions[0].Safety, "peer group") {
		t.Errorf("safety %q does not speak of the peer group", p.Actions[0].Safety)
	}
}

// TestRefusesWhatHasChanged changes something between plan and act.
func TestRefusesWhatHasChanged(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(t *testing.T, w *repairScene)
		message string // of a success without an act
		err     string
	}{
		"unmounted by somebody": {
			change:  func(t *testing.T, w *repairScene) { must(t, systest.UnmountPath(w.point, false)) },
			message: "was gone already",
		},
		"renewed by the kubelet": {
			change: func(t *testing.T, w *repairScene) {
				must(t, systest.UnmountPath(w.point, false))
				w.rebind()
			},
			message: "was gone already; another mount is there now and is left alone",
		},
		"pod replaced": {
			change: func(_ *testing.T, w *repairScene) {
				w.pod.UID = "another"
				w.pods.Set(w.pod)
			},
			err: `UID "another"`,
		},
		"pod gone": {
			change: func(_ *testing.T, w *repairScene) { w.pods.Set(nil) },
			err:    "pod not found",
		},
		"pod on another node": {
			change: func(_ *testing.T, w *repairScene) {
				w.pod.Spec.NodeName = "other"
				w.pods.Set(w.pod)
			},
			err: `node "other"`,
		},
		"spec does not ask for it": {
			change: func(_ *testing.T, w *repairScene) {
				w.pod.Spec.Containers[0].VolumeMounts[0].SubPath = ""
				w.pods.Set(w.pod)
			},
			err: "no subPath of pod",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRepairScene(t)
			w.renew()
			p := w.plan(t)
			c.change(t, w)
			before := tableOf(t, 0)
			done, err := w.healer.Apply(t.Context(), w.request, p.Actions[0])
			holds(t, 0, before)
			if c.err == "" && (err != nil || done != fault.AlreadySo(c.message)) {
				t.Errorf("%+v, error %v, want already so: %q", done, err, c.message)
			}
			if c.err != "" && (!processor.IsStalled(err) || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want a stalled one with %q", err, c.err)
			}
		})
	}
}

// TestRefusesForgedActions has Apply called with actions that no plan would hold. They come from the node's own
// journal; but that a healthy mount is not touched does not rest on that.
func TestRefusesForgedActions(t *testing.T) {
	w := newRepairScene(t)
	healthy, err := mount.Inspect(w.point)
	must(t, err)
	other := kubelettest.NewPod()
	other.UID = "other"
	lost := filepath.Join(w.Root, "lost")
	must(t, os.WriteFile(lost, nil, 0o644))
	foreign := w.Point(other, "configmap", "app", 0)
	w.Bind(lost, foreign)
	must(t, os.Remove(lost))
	stale, err := mount.Inspect(foreign)
	must(t, err)
	good, err := json.Marshal(planOf(healthy))
	must(t, err)
	before := tableOf(t, 0)
	for name, change := range map[string]func(*fault.Action){
		"a healthy bind":             func(*fault.Action) {},
		"a healthy bind called gone": func(a *fault.Action) { a.Mount.Root += "//deleted" },
		"another pod's stale bind":   func(a *fault.Action) { *a = planOf(stale) },
		"the root":                   func(a *fault.Action) { a.Mount.Point = "/" },
		"nothing":                    func(a *fault.Action) { a.Mount.Point = "" },
		"an option":                  func(a *fault.Action) { a.Mount.Point = "-a" },
		"the mark":                   func(a *fault.Action) { a.Mount.Point = "//deleted" },
		"climbing":                   func(a *fault.Action) { a.Mount.Point += "/../0" },
		"a volume":                   func(a *fault.Action) { a.Mount.Point = w.Volume(w.pod, kubelettest.ConfigMap, "configmap") },
		"no mount":                   func(a *fault.Action) { a.Mount = nil },
		"no device":                  func(a *fault.Action) { a.Mount.Device = "x" },
		"another kind":               func(a *fault.Action) { a.Kind = "Delete" },
	} {
		t.Run(name, func(t *testing.T) {
			var a fault.Action
			must(t, json.Unmarshal(good, &a))
			change(&a)
			done, err := w.healer.Apply(t.Context(), w.request, a)
			// Without an id of its own it may be one that has come in the place, with the number, of one that is gone.
			another := healthy.UniqueID == 0 && name == "a healthy bind called gone" && done.Already
			if !processor.IsStalled(err) && !another {
				t.Errorf("%+v, error %v, want a stalled error", done, err)
			}
			holds(t, 0, before)
		})
	}
}

func TestNothingToHeal(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *repairScene)
		want   []string
	}{
		"healthy": {nil, []string{"pod default/web has no stale subPath mount"}},
		"never restarted": {
			func(w *repairScene) { w.renew(); w.pod.Spec.RestartPolicy = corev1.RestartPolicyNever },
			[]string{"is not started again", "restartPolicy is Never", "Create the pod again"},
		},
		"ended": {
			func(w *repairScene) { w.renew(); w.pod.Status.Phase = corev1.PodFailed },
			[]string{"is not started again", "the pod has ended (Failed)"},
		},
		"being deleted": {
			func(w *repairScene) { w.renew(); w.pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
			[]string{"is not started again", "the pod is being deleted"},
		},
		"kubelet that renews": {
			func(w *repairScene) { w.Renews(true); w.healer.Kubelet = w.Node; w.renew() },
			[]string{"kubelet"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRepairScene(t)
			if c.change != nil {
				c.change(w)
				w.pods.Set(w.pod)
			}
			plan := w.plan(t)
			for _, part := range c.want {
				if !strings.Contains(plan.NotApplicable, part) {
					t.Errorf("reason %q does not speak of %q", plan.NotApplicable, part)
				}
			}
			if len(plan.Actions) != 0 {
				t.Errorf("actions %q, want none", processortest.Targets(plan))
			}
		})
	}
}

// TestInitContainerThatHasSucceeded runs again only if the pod's sandbox is recreated: it is healed, and not waited
// for.
func TestInitContainerThatHasSucceeded(t *testing.T) {
	w := newRepairScene(t)
	w.pod.Spec.InitContainers, w.pod.Spec.Containers = w.pod.Spec.Containers[:1], w.pod.Spec.Containers[1:]
	done := corev1.ContainerStatus{Name: "app", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}}
	w.pod.Status.InitContainerStatuses = []corev1.ContainerStatus{done}
	w.set(kubelettest.Running("sidecar"))
	w.renew()
	before := tableOf(t, 0)
	plan, result := w.heal(t)
	if took, waited := result.Values[KeyRecoverRunningAfter]; waited {
		t.Errorf("waited for %s s, want not to wait", took)
	}
	holds(t, 0, before, w.repairs(plan, "configmap")...)
}

// planOf is the action that a plan would have for a mount, were it stale.
func planOf(st mount.State) fault.Action {
	ns, err := mountns.Self()
	if err != nil {
		panic(err)
	}
	m := faults.MountOfState(st, ns.Inode)
	return fault.Action{Kind: fault.Unmount, For: []fault.Key{{Place: st.Point}}, Target: st.Point, Mount: &m, Lossless: true}
}
