// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podevict

import (
	"context"
	"errors"
	"fmt"
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
)

const uid = "29da79e5-386c-4e0d-82c1-215f93ff955d"

// scene is a cluster with one pod, or none, and what was asked of it.
type scene struct {
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

func (s *scene) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	s.looks++
	if s.each != nil {
		s.each(s.looks)
	}
	if s.pod == nil || namespace != s.pod.Namespace || name != s.pod.Name {
		return nil, fmt.Errorf("%w: %s/%s", kubelet.ErrPodNotFound, namespace, name)
	}
	return s.pod, nil
}

func (s *scene) Node(context.Context) (*kubelet.Node, error) { return kubelet.Own(s.root) }

func (s *scene) Unmendable(_ context.Context, podUID string) ([]fault.Finding, []string, error) {
	if podUID != uid {
		return nil, nil, fmt.Errorf("asked for pod %q", podUID)
	}
	return s.findings, s.reasons, s.judgeErr
}

func (s *scene) Evict(_ context.Context, namespace, name, uid string) error {
	s.evicted = append(s.evicted, namespace+"/"+name+" "+uid)
	if s.evict != nil {
		return s.evict()
	}
	return nil
}

func (s *scene) recoverer() *Recoverer { return &Recoverer{Pods: s, Kubelet: s, Judge: s, Evictor: s} }

var request = processor.Request{Node: "n1", Pod: processor.Pod{Namespace: "default", Name: "web-1"}}

// broken is a pod of a ReplicaSet with a dead volume.
func broken(t *testing.T, change func(*corev1.Pod)) *scene {
	t.Helper()
	s := &scene{
		pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web-1", UID: uid,
				OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: new(true)}},
			},
			Spec:   corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "app"}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		},
		findings: []fault.Finding{{Code: fault.DisconnectedFUSE, Pod: fault.Pod{UID: uid}, Volume: "data"}},
		reasons:  []string{"no healthy source of volume data is on this node"},
		root:     t.TempDir(),
	}
	if err := os.MkdirAll(filepath.Join(s.root, "pods", uid, "volumes", "kubernetes.io~csi", "pvc-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(s.pod)
	}
	return s
}

func TestPlan(t *testing.T) {
	t.Parallel()
	got, err := broken(t, nil).recoverer().Plan(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	want := processor.Plan{
		Actions: []fault.Action{{
			Kind: fault.Evict, Target: "pod default/web-1 (UID " + uid + ")", Pod: &fault.Pod{Namespace: "default", Name: "web-1", UID: uid}, Fault: fault.DisconnectedFUSE,
			Safety: `it has DisconnectedFUSE of volume data, which is not mended here: no healthy source of volume data is on this node; ` +
				`ReplicaSet "web" makes another pod in its place; PodDisruptionBudgets hold, and only the pod with UID ` + uid + ` is evicted`,
			Loss: "the pod: its containers end within its grace period, with what they have not written down",
		}},
		Findings: broken(t, nil).findings,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func ownedBy(kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name = kind, name }
}

func TestPlanSaysWhatItCosts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		scene  func(*scene)
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
			loss: "the sight of hostPath volumes logs",
		},
		"local volume": {
			scene: func(s *scene) {
				_ = os.MkdirAll(filepath.Join(s.root, "pods", uid, "volumes", localPlugin, "local-pv-1"), 0o755)
			},
			safety: "bound to this node by its local volumes (local-pv-1)",
		},
		"kubelet unknown": {scene: func(s *scene) { s.root = "/does/not/exist" }, loss: "local volumes, which bind it to this node, is not known"},
		"Job":             {change: ownedBy("Job", "j"), loss: "which the Job may count as a failure"},
		"StatefulSet":     {change: ownedBy("StatefulSet", "s"), safety: "made when this one has gone altogether"},
		"DaemonSet": {
			change: ownedBy("DaemonSet", "d"), values: map[string]string{ParamDaemonSet: "true"}, safety: "runs on this node again",
		},
		"hung": {scene: func(s *scene) { s.findings[0].Code = fault.HungMount }, safety: "as the volume hangs, it may stay"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := broken(t, c.change)
			if c.scene != nil {
				c.scene(s)
			}
			r := request
			r.Values = c.values
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

// refusals are pods that are not evicted, and why.
var refusals = map[string]struct {
	change func(*corev1.Pod)
	scene  func(*scene)
	want   string
}{
	"healthy":       {scene: func(s *scene) { s.findings, s.reasons = nil, []string{"volume data is alive"} }, want: "volume data is alive"},
	"static":        {change: func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, want: "mirrors a static pod"},
	"mirror":        {change: ownedBy("Node", "n1"), want: "it is a static pod"},
	"bare":          {change: func(p *corev1.Pod) { p.OwnerReferences = nil }, want: "it has no controller, so nothing would make it anew"},
	"no controller": {change: func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, want: "it has no controller"},
	"DaemonSet":     {change: ownedBy("DaemonSet", "d"), want: "would come back on this node"},
	"going":         {change: func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, want: "it is being deleted already"},
	"succeeded":     {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, want: "it has ended (phase Succeeded)"},
	"failed":        {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, want: "it has ended (phase Failed)"},
	"another node":  {change: func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, want: "n2"},
}

func TestPlanRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := broken(t, c.change)
			if c.scene != nil {
				c.scene(s)
			}
			p, err := s.recoverer().Plan(t.Context(), request)
			if err != nil || len(p.Actions) > 0 || !strings.Contains(p.NotApplicable, c.want) {
				t.Errorf("plan %+v, %v, want %q", p, err, c.want)
			}
		})
	}
}

func TestPlanSaysHowToAllowIt(t *testing.T) {
	t.Parallel()
	h := broken(t, nil).recoverer()
	h.Evictor = nil
	p, err := h.Plan(t.Context(), request)
	if err != nil || len(p.Actions) > 0 || len(p.Findings) != 1 {
		t.Fatalf("plan %+v, %v", p, err)
	}
	for _, want := range []string{"--allow-eviction", "config/overlays/eviction"} {
		if !strings.Contains(p.NotApplicable, want) {
			t.Errorf("it does not speak of %s: %s", want, p.NotApplicable)
		}
	}
}

func TestPlanFails(t *testing.T) {
	t.Parallel()
	s := broken(t, nil)
	s.judgeErr = errors.New("it cannot be told")
	if _, err := s.recoverer().Plan(t.Context(), request); !errors.Is(err, s.judgeErr) {
		t.Errorf("error %v", err)
	}
	for name, r := range map[string]processor.Request{
		"no pod named":    {Node: "n1"},
		"no such pod":     {Node: "n1", Pod: processor.Pod{Namespace: "default", Name: "x"}},
		"daemon set, bad": {Node: "n1", Pod: request.Pod, Values: map[string]string{ParamDaemonSet: "yes"}},
		"wait, bad":       {Node: "n1", Pod: request.Pod, Values: map[string]string{ParamWaitSeconds: "3601"}},
	} {
		if p, err := broken(t, nil).recoverer().Plan(t.Context(), r); !processor.IsStalled(err) {
			t.Errorf("%s: %+v, %v, want that it stalls", name, p, err)
		}
	}
}

func action() fault.Action { return evict("default", "web-1", uid) }

func evict(namespace, name, uid string) fault.Action {
	return fault.Action{Kind: fault.Evict, Target: "a pod", Pod: &fault.Pod{Namespace: namespace, Name: name, UID: uid}}
}

func TestApply(t *testing.T) {
	t.Parallel()
	gone := func() error { return fmt.Errorf("x: %w", ErrGone) }
	for name, c := range map[string]struct {
		change  func(*corev1.Pod)
		scene   func(*scene)
		want    fault.Applied
		evicted bool
	}{
		"evicts":             {want: fault.Applied{Message: "evicted"}, evicted: true},
		"gone meanwhile":     {scene: func(s *scene) { s.evict = gone }, want: fault.AlreadySo("was gone already"), evicted: true},
		"gone before":        {scene: func(s *scene) { s.pod = nil }, want: fault.AlreadySo("was gone already")},
		"made anew":          {change: func(p *corev1.Pod) { p.UID = types.UID("other") }, want: fault.AlreadySo("was gone already: another pod has its name")},
		"going, after crash": {change: func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, want: fault.AlreadySo("was being deleted already")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := broken(t, c.change)
			if c.scene != nil {
				c.scene(s)
			}
			got, err := s.recoverer().Apply(t.Context(), request, action())
			if err != nil || got != c.want || (len(s.evicted) == 1) != c.evicted {
				t.Errorf("%+v, %v, evicted %q, want %+v", got, err, s.evicted, c.want)
			}
			if c.evicted && s.evicted[0] != "default/web-1 "+uid {
				t.Errorf("evicted %q", s.evicted)
			}
		})
	}
}

// TestApplyRefuses what has changed since the plan, and what an action says that no plan of ours would.
func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range refusals {
		if name == "going" {
			continue // done, see TestApply
		}
		s := broken(t, c.change)
		if c.scene != nil {
			c.scene(s)
		}
		if done, err := s.recoverer().Apply(t.Context(), request, action()); !processor.IsStalled(err) || len(s.evicted) > 0 {
			t.Errorf("%s: %+v, %v, evicted %q", name, done, err, s.evicted)
		}
	}
	for name, a := range map[string]fault.Action{
		"another kind":      {Kind: "Delete", Pod: action().Pod},
		"another pod":       evict("default", "db-1", uid),
		"another namespace": evict("kube-system", "web-1", uid),
		"no UID":            evict("default", "web-1", ""),
		"a target alone":    {Kind: fault.Evict, Target: action().Target},
	} {
		s := broken(t, nil)
		if done, err := s.recoverer().Apply(t.Context(), request, a); !processor.IsStalled(err) || len(s.evicted) > 0 {
			t.Errorf("%s: %+v, %v, evicted %q", name, done, err, s.evicted)
		}
	}
	s := broken(t, nil)
	h := s.recoverer()
	h.Evictor = nil
	if done, err := h.Apply(t.Context(), request, action()); !processor.IsStalled(err) {
		t.Errorf("not allowed any more: %+v, %v", done, err)
	}
}

func TestApplyWaitsForBudgets(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ says, want time.Duration }{
		"a time is named": {7 * time.Second, 7 * time.Second},
		"none is":         {0, tryAgain},
	} {
		s := broken(t, nil)
		s.evict = func() error { return &BlockedError{Reason: "the disruption budget web-pdb needs 1", After: c.says} }
		_, err := s.recoverer().Apply(t.Context(), request, action())
		var waiting *processor.WaitingError
		if !errors.As(err, &waiting) || waiting.After != c.want || !strings.Contains(err.Error(), "web-pdb") {
			t.Errorf("%s: %v, want to wait %v and that the budget is named", name, err, c.want)
		}
	}
	s := broken(t, nil)
	s.evict = func() error { return fmt.Errorf("x: %w", ErrForbidden) }
	if _, err := s.recoverer().Apply(t.Context(), request, action()); !processor.IsStalled(err) || !strings.Contains(err.Error(), "overlays/eviction") {
		t.Errorf("forbidden: %v", err)
	}
	s.evict = func() error { return errors.New("connection refused") }
	if _, err := s.recoverer().Apply(t.Context(), request, action()); err == nil || processor.IsStalled(err) {
		t.Errorf("no API server: %v, want a failure to try again", err)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	ends := func(after time.Duration) *metav1.Time { return &metav1.Time{Time: time.Now().Add(after)} }
	for name, c := range map[string]struct {
		scene   func(*scene)
		already string // and by which words; empty: not
		want    string
		healed  bool
		stalls  bool
	}{
		"gone":      {scene: func(s *scene) { s.pod = nil }, want: ") was evicted, and is gone", healed: true},
		"made anew": {scene: func(s *scene) { s.pod.UID = "other" }, want: ") was evicted, and is gone", healed: true},
		"deleted by others": {
			scene: func(s *scene) { s.pod = nil }, already: "was gone already",
			want: ") was not evicted: was gone already, and is gone", healed: true,
		},
		"being deleted by others": {
			scene:   func(s *scene) { s.pod.DeletionTimestamp = ends(105 * time.Second) },
			already: "was being deleted already",
			want:    ") was not evicted: was being deleted already, and is being deleted: its containers",
		},
		"goes while it is waited for": {
			scene: func(s *scene) {
				s.pod.DeletionTimestamp = ends(time.Minute)
				s.each = func(look int) {
					if look == 5 {
						s.pod = nil
					}
				}
			},
			want: "is gone", healed: true,
		},
		"has time left": {scene: func(s *scene) { s.pod.DeletionTimestamp = ends(105 * time.Second) }, want: "1m0s left to end by themselves"},
		"held up by its volume": {
			scene: func(s *scene) { s.pod.DeletionTimestamp = ends(time.Second) },
			want:  "it stays on this node while it has DisconnectedFUSE of volume data",
		},
		"held up by something": {
			scene: func(s *scene) { s.pod.DeletionTimestamp, s.findings = ends(time.Second), nil },
			want:  "its grace period is over, and it is still there",
		},
		"does not go": {scene: func(*scene) {}, stalls: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := broken(t, nil)
				plan := processor.Plan{Actions: []fault.Action{action()}, Findings: s.findings}
				if c.already != "" {
					plan.Applied = []fault.Applied{fault.AlreadySo(c.already)}
				}
				c.scene(s)
				got, err := s.recoverer().Verify(t.Context(), request, plan)
				if processor.IsStalled(err) != c.stalls || err != nil && !c.stalls {
					t.Fatalf("error %v", err)
				}
				if c.stalls {
					return
				}
				if !strings.Contains(got.Values[KeyResult], c.want) || got.Findings[0].Healed != c.healed {
					t.Errorf("%q, healed %v, want %q", got.Values[KeyResult], got.Findings[0].Healed, c.want)
				}
			})
		})
	}
	if _, err := broken(t, nil).recoverer().Verify(t.Context(), request, processor.Plan{}); !processor.IsStalled(err) {
		t.Errorf("a plan without an action: %v", err)
	}
}

// TestPipesAmongTheVolumes: a container that has the kubelet's directories can make anything there.
func TestPipesAmongTheVolumes(t *testing.T) {
	s := broken(t, func(*corev1.Pod) {})
	dir := filepath.Join(s.root, "pods", uid, "volumes")
	if err := os.MkdirAll(filepath.Join(dir, localPlugin, "disk"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfifo", filepath.Join(dir, "a-pipe")).CombinedOutput(); err != nil {
		t.Fatalf("mkfifo: %v: %s", err, out)
	}
	done := make(chan processor.Plan, 1)
	go func() {
		plan, err := s.recoverer().Plan(t.Context(), request)
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
		t.Fatal("it waits for whoever writes to a pipe")
	}
}

// TestInOtherWords: no sentence of a plan or of an action decides anything.
func TestInOtherWords(t *testing.T) {
	t.Parallel()
	pipelinetest.InOtherWords(t, func(t *testing.T) (processor.Recoverer, processor.Request) {
		s := broken(t, nil)
		s.evict = func() error {
			s.pod = nil
			return nil
		}
		return s.recoverer(), request
	})
}
