// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/pipeline/pipelinetest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
	"kubediag.org/kubediag/internal/repair/repairtest"
)

const evictedUID = "29da79e5-386c-4e0d-82c1-215f93ff955d"

// evictScene is a cluster with one pod, or none, and what was asked of it.
type evictScene struct {
	pod      *corev1.Pod
	findings []fault.Finding
	reasons  []string
	judgeErr error
	root     string
	evict    func() error
	evicted  []string
	looks    int
	each     func(look int) // before each look at the pod
}

func (s *evictScene) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	s.looks++
	if s.each != nil {
		s.each(s.looks)
	}
	if s.pod == nil || namespace != s.pod.Namespace || name != s.pod.Name {
		return nil, fmt.Errorf("%w: %s/%s", kubelet.ErrPodNotFound, namespace, name)
	}
	return s.pod, nil
}

func (s *evictScene) Node(context.Context) (*kubelet.Node, error) { return kubelet.Local(s.root) }

func (s *evictScene) Unrepairable(_ context.Context, podUID string) ([]fault.Finding, []string, error) {
	if podUID != evictedUID {
		return nil, nil, fmt.Errorf("asked for pod %q", podUID)
	}
	return s.findings, s.reasons, s.judgeErr
}

func (s *evictScene) Evict(_ context.Context, namespace, name, uid string) error {
	s.evicted = append(s.evicted, namespace+"/"+name+" "+uid)
	if s.evict != nil {
		return s.evict()
	}
	return nil
}

func (s *evictScene) recoverer() *EvictRecoverer {
	return &EvictRecoverer{Pods: s, Kubelet: s, Judge: s, Allowed: true}
}

var evictRequest = processor.Request{
	Node: "n1", Pod: processor.Pod{Namespace: "default", Name: "web-1"}, Values: map[string]string{ParamEvictAllowed: "true"},
}

// newEvictScene is a pod of a ReplicaSet with a dead volume.
func newEvictScene(t *testing.T, change func(*corev1.Pod)) *evictScene {
	t.Helper()
	s := &evictScene{
		pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web-1", UID: evictedUID,
				OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: new(true)}},
			},
			Spec:   corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "app"}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		},
		findings: []fault.Finding{{Code: fault.DisconnectedFUSE, Pod: fault.Pod{UID: evictedUID}, Volume: "data"}},
		reasons:  []string{"no healthy source of volume data is on this node"},
		root:     t.TempDir(),
	}
	if err := os.MkdirAll(filepath.Join(s.root, "pods", evictedUID, "volumes", "kubernetes.io~csi", "pvc-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(s.pod)
	}
	return s
}

func TestEvictPlan(t *testing.T) {
	t.Parallel()
	got, err := newEvictScene(t, nil).recoverer().Plan(t.Context(), evictRequest)
	if err != nil {
		t.Fatal(err)
	}
	want := repair.Part{
		Actions: []fault.Action{{
			Kind: fault.Evict, For: []fault.Key{newEvictScene(t, nil).findings[0].Key()}, Target: "pod default/web-1 (UID " + evictedUID + ")", Pod: &fault.Pod{Namespace: "default", Name: "web-1", UID: evictedUID},
			Safety: `it has DisconnectedFUSE of volume data, which is not repaired here: no healthy source of volume data is on this node; ` +
				`ReplicaSet "web" creates a new pod in its place; PodDisruptionBudgets hold, and only the pod with UID ` + evictedUID + ` is evicted`,
			Loss: "the pod: its containers end within its grace period, and lose what they have not stored",
		}},
		Findings: newEvictScene(t, nil).findings,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func ownedBy(kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name = kind, name }
}

func TestEvictPlanSaysWhatItCosts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		scene  func(*evictScene)
		values map[string]string
		safety string
		loss   string
	}{
		"emptyDir": {
			change: func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{
					{Name: "a", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
					{Name: "b", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
					{Name: "c", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				}
			},
			loss: "the content of emptyDir volumes a, c",
		},
		"ephemeral": {
			change: func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
			},
			loss: "of ephemeral volumes scratch",
		},
		"inline": {
			change: func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "in", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}}}
			},
			loss: "of inline CSI volumes in",
		},
		"hostPath": {
			change: func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "logs", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}}}
			},
			loss: "if the new pod runs on another node, hostPath volumes logs, which stay here",
		},
		"local volume": {
			scene: func(s *evictScene) {
				_ = os.MkdirAll(filepath.Join(s.root, "pods", evictedUID, "volumes", "kubernetes.io~local-volume", "local-pv-1"), 0o755)
			},
			safety: "bound to this node by its local volumes (local-pv-1)",
		},
		"kubelet unknown": {scene: func(s *evictScene) { s.root = "/does/not/exist" }, loss: "whether local volumes bind it there is unknown"},
		"Job":             {change: ownedBy("Job", "j"), loss: "which the Job may count as a failure"},
		"StatefulSet":     {change: ownedBy("StatefulSet", "s"), safety: "the new pod is created after this one is gone"},
		"DaemonSet": {
			change: ownedBy("DaemonSet", "d"), values: map[string]string{paramEvictDaemonSet: "true"}, safety: "runs on this node again",
		},
		"hung": {scene: func(s *evictScene) { s.findings[0].Code = fault.HungMount }, safety: "as the volume hangs, it may stay"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newEvictScene(t, c.change)
			if c.scene != nil {
				c.scene(s)
			}
			r := evictRequest
			r.Values = map[string]string{ParamEvictAllowed: "true"}
			maps.Copy(r.Values, c.values)
			p, err := s.recoverer().Plan(t.Context(), r)
			if err != nil || len(p.Actions) != 1 {
				t.Fatalf("plan %+v, %v", p, err)
			}
			if a := p.Actions[0]; !strings.Contains(a.Safety, c.safety) || !strings.Contains(a.Loss, c.loss) {
				t.Errorf("safety %q\nloss %q\nwant %q and %q in them", a.Safety, a.Loss, c.safety, c.loss)
			}
		})
	}
}

// evictRefusals are pods that are not evicted, and why.
var evictRefusals = map[string]struct {
	change func(*corev1.Pod)
	scene  func(*evictScene)
	want   string
}{
	"healthy":       {scene: func(s *evictScene) { s.findings, s.reasons = nil, []string{"volume data is alive"} }, want: "volume data is alive"},
	"static":        {change: func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, want: "mirrors a static pod"},
	"mirror":        {change: ownedBy("Node", "n1"), want: "it is a static pod"},
	"bare":          {change: func(p *corev1.Pod) { p.OwnerReferences = nil }, want: "it has no controller, so no program would create it again"},
	"no controller": {change: func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, want: "it has no controller"},
	"DaemonSet":     {change: ownedBy("DaemonSet", "d"), want: "would create it on this node again"},
	"going":         {change: func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, want: "it is being deleted already"},
	"succeeded":     {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, want: "it has ended (phase Succeeded)"},
	"failed":        {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, want: "it has ended (phase Failed)"},
	"another node":  {change: func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, want: "n2"},
}

func TestEvictPlanRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range evictRefusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newEvictScene(t, c.change)
			if c.scene != nil {
				c.scene(s)
			}
			p, err := s.recoverer().Plan(t.Context(), evictRequest)
			if err != nil || len(p.Actions) > 0 || !strings.Contains(p.NotApplicable, c.want) {
				t.Errorf("plan %+v, %v, want %q", p, err, c.want)
			}
		})
	}
}

func TestEvictPlanSaysHowToAllowIt(t *testing.T) {
	t.Parallel()
	h := newEvictScene(t, nil).recoverer()
	h.Allowed = false
	p, err := h.Plan(t.Context(), evictRequest)
	if err != nil || len(p.Actions) > 0 || len(p.Findings) != 1 {
		t.Fatalf("plan %+v, %v", p, err)
	}
	for _, want := range []string{"--allow-eviction", "config/overlays/eviction"} {
		if !strings.Contains(p.NotApplicable, want) {
			t.Errorf("it does not speak of %s: %s", want, p.NotApplicable)
		}
	}
}

func TestEvictPlanFails(t *testing.T) {
	t.Parallel()
	s := newEvictScene(t, nil)
	s.judgeErr = errors.New("it cannot be told")
	if _, err := s.recoverer().Plan(t.Context(), evictRequest); !errors.Is(err, s.judgeErr) {
		t.Errorf("error %v", err)
	}
	for name, r := range map[string]processor.Request{
		"no pod named":    {Node: "n1"},
		"no such pod":     {Node: "n1", Pod: processor.Pod{Namespace: "default", Name: "x"}},
		"allowed, bad":    {Node: "n1", Pod: evictRequest.Pod, Values: map[string]string{ParamEvictAllowed: "1"}},
		"daemon set, bad": {Node: "n1", Pod: evictRequest.Pod, Values: map[string]string{paramEvictDaemonSet: "yes"}},
		"wait, bad":       {Node: "n1", Pod: evictRequest.Pod, Values: map[string]string{ParamEvictWaitSeconds: "3601"}},
	} {
		if p, err := newEvictScene(t, nil).recoverer().Plan(t.Context(), r); !processor.IsStalled(err) {
			t.Errorf("%s: %+v, %v, want that it stalls", name, p, err)
		}
	}
}

func evictAction() fault.Action { return evictActionOf("default", "web-1", evictedUID) }

func evictActionOf(namespace, name, uid string) fault.Action {
	return fault.Action{Kind: fault.Evict, Target: "a pod", Pod: &fault.Pod{Namespace: namespace, Name: name, UID: uid}}
}

// apply has the engine do an action.
func (s *evictScene) apply(t *testing.T, r processor.Request, a fault.Action) (fault.Applied, error) {
	t.Helper()
	e := repairtest.NewEngine()
	e.Evictor = s
	return repairtest.Apply(t.Context(), e, r, s.recoverer(), a)
}

func TestEvictApply(t *testing.T) {
	t.Parallel()
	gone := func() error { return fmt.Errorf("x: %w", repair.ErrGone) }
	for name, c := range map[string]struct {
		change  func(*corev1.Pod)
		scene   func(*evictScene)
		want    fault.Applied
		evicted bool
	}{
		"evicts":             {want: fault.Applied{Message: "evicted"}, evicted: true},
		"gone meanwhile":     {scene: func(s *evictScene) { s.evict = gone }, want: fault.AlreadySo("was gone already"), evicted: true},
		"gone before":        {scene: func(s *evictScene) { s.pod = nil }, want: fault.AlreadySo("was gone already")},
		"created again":      {change: func(p *corev1.Pod) { p.UID = types.UID("other") }, want: fault.AlreadySo("was gone already: another pod has its name")},
		"going, after crash": {change: func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, want: fault.AlreadySo("was being deleted already")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newEvictScene(t, c.change)
			if c.scene != nil {
				c.scene(s)
			}
			got, err := s.apply(t, evictRequest, evictAction())
			if err != nil || got != c.want || (len(s.evicted) == 1) != c.evicted {
				t.Errorf("%+v, %v, evicted %q, want %+v", got, err, s.evicted, c.want)
			}
			if c.evicted && s.evicted[0] != "default/web-1 "+evictedUID {
				t.Errorf("evicted %q", s.evicted)
			}
		})
	}
}

// TestEvictionIsAskedFor by a parameter of the Diagnosis. Without it, a pod is not evicted, also by a plan that has it.
func TestEvictionIsAskedFor(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]map[string]string{
		"no parameter": nil, "false": {ParamEvictAllowed: "false"}, "empty": {ParamEvictAllowed: ""},
		"another one": {paramEvictDaemonSet: "true", ParamEvictWaitSeconds: "1"},
	} {
		s, r := newEvictScene(t, nil), evictRequest
		r.Values = values
		plan, err := s.recoverer().Plan(t.Context(), r)
		if err != nil || len(plan.Actions) > 0 || len(plan.Findings) == 0 || !strings.Contains(plan.NotApplicable, `set its parameter `+ParamEvictAllowed+` to "true"`) {
			t.Errorf("%s: plan %+v, %v", name, plan, err)
		}
		if done, err := s.apply(t, r, evictAction()); !processor.IsStalled(err) || len(s.evicted) > 0 {
			t.Errorf("%s: %+v, %v, evicted %q", name, done, err, s.evicted)
		}
	}
}

// TestEvictApplyRefuses what has changed since the plan, and what an action says that no plan of ours would.
func TestEvictApplyRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range evictRefusals {
		if name == "going" {
			continue // done, see TestApply
		}
		s := newEvictScene(t, c.change)
		if c.scene != nil {
			c.scene(s)
		}
		if done, err := s.apply(t, evictRequest, evictAction()); !processor.IsStalled(err) || len(s.evicted) > 0 {
			t.Errorf("%s: %+v, %v, evicted %q", name, done, err, s.evicted)
		}
	}
	for name, action := range map[string]fault.Action{
		"another kind":      {Kind: "Delete", Pod: evictAction().Pod},
		"another pod":       evictActionOf("default", "db-1", evictedUID),
		"another namespace": evictActionOf("kube-system", "web-1", evictedUID),
		"no UID":            evictActionOf("default", "web-1", ""),
		"a target alone":    {Kind: fault.Evict, Target: evictAction().Target},
	} {
		s := newEvictScene(t, nil)
		if done, err := s.apply(t, evictRequest, action); !processor.IsStalled(err) || len(s.evicted) > 0 {
			t.Errorf("%s: %+v, %v, evicted %q", name, done, err, s.evicted)
		}
	}
	s := newEvictScene(t, nil)
	h := s.recoverer()
	h.Allowed = false
	if done, err := h.Apply(t.Context(), evictRequest, evictAction()); !processor.IsStalled(err) {
		t.Errorf("not allowed any more: %+v, %v", done, err)
	}
}

func TestEvictApplyWaitsForBudgets(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ says, want time.Duration }{
		"a time is named": {7 * time.Second, 7 * time.Second},
		"none is":         {0, time.Minute},
	} {
		s := newEvictScene(t, nil)
		s.evict = func() error {
			return &repair.BlockedError{Reason: "the disruption budget web-pdb needs 1", After: c.says}
		}
		_, err := s.apply(t, evictRequest, evictAction())
		var waiting *processor.WaitingError
		if !errors.As(err, &waiting) || waiting.After != c.want || !strings.Contains(err.Error(), "web-pdb") {
			t.Errorf("%s: %v, want to wait %v and that the budget is named", name, err, c.want)
		}
	}
	s := newEvictScene(t, nil)
	s.evict = func() error { return fmt.Errorf("x: %w", repair.ErrForbidden) }
	if _, err := s.apply(t, evictRequest, evictAction()); !processor.IsStalled(err) || !strings.Contains(err.Error(), "overlays/eviction") {
		t.Errorf("forbidden: %v", err)
	}
	s.evict = func() error { return errors.New("connection refused") }
	if _, err := s.apply(t, evictRequest, evictAction()); err == nil || processor.IsStalled(err) {
		t.Errorf("no API server: %v, want a failure to try again", err)
	}
}

func TestEvictVerify(t *testing.T) {
	t.Parallel()
	ends := func(after time.Duration) *metav1.Time { return &metav1.Time{Time: time.Now().Add(after)} }
	for name, c := range map[string]struct {
		scene   func(*evictScene)
		already string // and by which words; empty: not
		want    string
		healed  bool
		stalls  bool
	}{
		"gone":          {scene: func(s *evictScene) { s.pod = nil }, want: ") was evicted, and is gone", healed: true},
		"created again": {scene: func(s *evictScene) { s.pod.UID = "other" }, want: ") was evicted, and is gone", healed: true},
		"deleted by others": {
			scene: func(s *evictScene) { s.pod = nil }, already: "was gone already",
			want: ") was not evicted: was gone already, and is gone", healed: true,
		},
		"being deleted by others": {
			scene:   func(s *evictScene) { s.pod.DeletionTimestamp = ends(105 * time.Second) },
			already: "was being deleted already",
			want:    ") was not evicted: was being deleted already, and is being deleted: its containers",
		},
		"goes while it is waited for": {
			scene: func(s *evictScene) {
				s.pod.DeletionTimestamp = ends(time.Minute)
				s.each = func(look int) {
					if look == 5 {
						s.pod = nil
					}
				}
			},
			want: "is gone", healed: true,
		},
		"has time left": {scene: func(s *evictScene) { s.pod.DeletionTimestamp = ends(105 * time.Second) }, want: "1m0s left to end by themselves"},
		"held up by its volume": {
			scene: func(s *evictScene) { s.pod.DeletionTimestamp = ends(time.Second) },
			want:  "it stays on this node while it has DisconnectedFUSE of volume data",
		},
		"held up by something": {
			scene: func(s *evictScene) { s.pod.DeletionTimestamp, s.findings = ends(time.Second), nil },
			want:  "its grace period is over, and it is still there",
		},
		"does not go": {scene: func(*evictScene) {}, stalls: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newEvictScene(t, nil)
				plan := repair.Part{Actions: []fault.Action{evictAction()}, Findings: s.findings}
				if c.already != "" {
					plan.Applied = []fault.Applied{fault.AlreadySo(c.already)}
				}
				c.scene(s)
				got, err := processortest.Prove(t.Context(), s.recoverer(), evictRequest, plan)
				if processor.IsStalled(err) != c.stalls || err != nil && !c.stalls {
					t.Fatalf("error %v", err)
				}
				if c.stalls {
					return
				}
				if !strings.Contains(got.Values[KeyEvictResult], c.want) || got.Findings[0].Healed != c.healed {
					t.Errorf("%q, healed %v, want %q", got.Values[KeyEvictResult], got.Findings[0].Healed, c.want)
				}
			})
		})
	}
	if _, err := processortest.Prove(t.Context(), newEvictScene(t, nil).recoverer(), evictRequest, repair.Part{}); !processor.IsStalled(err) {
		t.Errorf("a plan without an action: %v", err)
	}
}

// TestPipesAmongTheVolumes: a container that has the kubelet's directories can make anything there.
func TestPipesAmongTheVolumes(t *testing.T) {
	s := newEvictScene(t, func(*corev1.Pod) {})
	dir := filepath.Join(s.root, "pods", evictedUID, "volumes")
	if err := os.MkdirAll(filepath.Join(dir, "kubernetes.io~local-volume", "disk"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfifo", filepath.Join(dir, "a-pipe")).CombinedOutput(); err != nil {
		t.Fatalf("mkfifo: %v: %s", err, out)
	}
	done := make(chan repair.Part, 1)
	go func() {
		plan, err := s.recoverer().Plan(t.Context(), evictRequest)
		if err != nil {
			t.Error(err)
		}
		done <- plan
	}()
	select {
	case plan := <-done:
		if len(plan.Actions) != 1 || !strings.Contains(plan.Actions[0].Safety, "local volumes (disk)") {
			t.Errorf("plan = %+v", plan)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for the process that writes to a pipe")
	}
}

// TestEvictInOtherWords: no sentence of a plan or of an action decides anything.
func TestEvictInOtherWords(t *testing.T) {
	t.Parallel()
	pipelinetest.InOtherWords(t, func(t *testing.T) (repair.Family, processor.Request) {
		s := newEvictScene(t, nil)
		s.evict = func() error {
			s.pod = nil
			return nil
		}
		return struct {
			*EvictRecoverer
			repair.Evictor
		}{s.recoverer(), s}, evictRequest
	})
}
