// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package restart

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/processor"
)

func TestOptions(t *testing.T) {
	t.Parallel()
	keys := Keys{BringForward: "param.a.bring_forward", WaitSeconds: "param.a.wait_seconds"}
	for name, c := range map[string]struct {
		values map[string]string
		want   Options
		err    []string
	}{
		"none":          {nil, Options{true, 45 * time.Second}, nil},
		"set":           {map[string]string{keys.BringForward: "false", keys.WaitSeconds: "7"}, Options{false, 7 * time.Second}, nil},
		"no wait":       {map[string]string{keys.BringForward: "true", keys.WaitSeconds: "0"}, Options{true, 0}, nil},
		"not a boolean": {map[string]string{keys.BringForward: "no"}, Options{}, []string{keys.BringForward, `"no"`}},
		"not a number":  {map[string]string{keys.WaitSeconds: "1m"}, Options{}, []string{keys.WaitSeconds, `"1m"`}},
		"negative":      {map[string]string{keys.WaitSeconds: "-1"}, Options{}, []string{keys.WaitSeconds, `"-1"`}},
		"too long":      {map[string]string{keys.WaitSeconds: "3601"}, Options{}, []string{keys.WaitSeconds, `"3601"`, "3600"}},
		"far too long":  {map[string]string{keys.WaitSeconds: "99999999999999999999"}, Options{}, []string{keys.WaitSeconds}},
		"another's":     {map[string]string{"param.b.bring_forward": "false"}, Options{true, 45 * time.Second}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := keys.Options(c.values)
			if len(c.err) == 0 && (err != nil || got != c.want) {
				t.Errorf("options %+v, %v, want %+v", got, err, c.want)
			}
			for _, part := range c.err {
				if err == nil || !strings.Contains(err.Error(), part) || !processor.IsStalled(err) {
					t.Errorf("error %v, want a stalled one with %q", err, part)
				}
			}
		})
	}
}

func TestStarted(t *testing.T) {
	t.Parallel()
	ran := func(id, reason string, started int64) *corev1.ContainerStateTerminated {
		return &corev1.ContainerStateTerminated{ContainerID: id, Reason: reason, StartedAt: metav1.Unix(started, 0)}
	}
	for name, c := range map[string]struct {
		state, last corev1.ContainerState
		want        bool
	}{
		"runs":                            {corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, corev1.ContainerState{}, true},
		"waits":                           {corev1.ContainerState{}, corev1.ContainerState{}, false},
		"ran before the plan":             {corev1.ContainerState{}, corev1.ContainerState{Terminated: ran("old", "Completed", 100)}, false},
		"has run and ended":               {corev1.ContainerState{Terminated: ran("new", "Completed", 100)}, corev1.ContainerState{}, true},
		"has run, ended, and waits again": {corev1.ContainerState{}, corev1.ContainerState{Terminated: ran("new", "Error", 100)}, true},
		"failed to start again":           {corev1.ContainerState{Terminated: ran("new", "StartError", 0)}, corev1.ContainerState{}, false},
		"failed to start under Docker":    {corev1.ContainerState{Terminated: ran("new", "ContainerCannotRun", 100)}, corev1.ContainerState{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := corev1.ContainerStatus{State: c.state, LastTerminationState: c.last}
			if got := startedSince(s, []string{"old"}); got != c.want {
				t.Errorf("started = %v, want %v", got, c.want)
			}
		})
	}
}

// oneContainerRuntime is a runtime with records of one container.
type oneContainerRuntime map[string][]cri.Container

func (r oneContainerRuntime) Records(_ context.Context, _, container string) ([]cri.Container, error) {
	return r[container], nil
}

func (oneContainerRuntime) Remove(context.Context, cri.Container) error { return cri.ErrNotRemovable }

// TestOnlyWhatWaitsIsBroughtForward: containers that run are not waited for, and records back to one that has run go.
func TestOnlyWhatWaitsIsBroughtForward(t *testing.T) {
	t.Parallel()
	pod := kubelettest.NewPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{
		kubelettest.Failing("app", "no such file or directory"), kubelettest.Running("sidecar"),
	}
	pending := PendingIn(pod, []string{"app", "sidecar", "app", "unknown"})
	if len(pending.Containers) != 1 || pending.Containers[0].Container != "app" || pending.PodUID != string(pod.UID) {
		t.Fatalf("waiting %+v, want app alone", pending)
	}
	never := func(id string) cri.Container { return cri.Container{ID: id, Exited: true, ExitCode: 128} }
	s := Restarter{Runtime: oneContainerRuntime{
		"app":     {never("3"), never("2"), {ID: "1", Exited: true, ExitCode: 1, Started: time.Unix(100, 0)}, never("0")},
		"sidecar": {never("4")},
	}}
	repairs := []fault.Action{
		{For: []fault.Key{{Code: fault.StaleSubPath, Container: "sidecar", Volume: "c"}}},
		{For: []fault.Key{{Code: fault.StaleSubPath, Container: "app", Volume: "a"}}}, {For: []fault.Key{{Code: fault.HungMount, Volume: "b"}}},
	}
	var got []string
	for _, a := range s.Actions(t.Context(), pending, repairs) {
		got = append(got, fmt.Sprint(a.Kind, " ", a.Container, " ", a.Record, " ", a.For))
	}
	const served = " [{StaleSubPath  app a } {HungMount   b }]"
	want := []string{"RemoveContainerRecord app 3" + served, "RemoveContainerRecord app 2" + served}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("removals (-want +got):\n%s", diff)
	}
	removal := fault.Action{Kind: fault.RemoveContainerRecord, Record: "1", Container: "app"}
	if message := s.removeRecord(t.Context(), pod, removal); !strings.HasPrefix(message, "left alone: ") {
		t.Errorf("a record that stays: %s", message)
	}
	if message := (Restarter{}).removeRecord(t.Context(), pod, removal); !strings.HasPrefix(message, "left alone: ") {
		t.Errorf("no runtime: %s", message)
	}
	if actions := (Restarter{}).Actions(t.Context(), pending, repairs); actions != nil {
		t.Errorf("no runtime: %+v", actions)
	}
}

// TestConcludeKnowsThePod: a namesake of the pod is not waited for, and one that never starts fails with the reason.
func TestConcludeKnowsThePod(t *testing.T) {
	t.Parallel()
	pod, pods := kubelettest.NewPod(), &kubelettest.Pods{}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Failing("app", "x")}
	pods.Set(pod)
	s, pending := Restarter{Pods: pods, RunningAfter: "running"}, PendingIn(pod, []string{"app"})
	request := processor.Request{Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: pod.Namespace, Name: pod.Name}}
	findings, left := []fault.Finding{{Container: "app"}, {Container: "sidecar"}}, fault.Finding{Code: fault.HungMount}
	await := func(p Pending, limit time.Duration) (processor.Result, error) {
		proven := processor.Result{Values: map[string]string{}, Findings: findings}
		result := s.Conclude(request, p, Options{Wait: time.Second}, proven, left)
		if f := result.Findings; len(f) != 3 || f[0].Healed || !f[1].Healed || f[2].Healed {
			t.Errorf("findings of a driver that does not wait: %+v", f)
		}
		result.Wait.Limit = limit
		return result.Wait.Await(t.Context())
	}
	if _, err := await(pending, 0); !processor.IsStalled(err) || !strings.Contains(err.Error(), `container "app" is still not running`) {
		t.Errorf("a container that waits: %v", err)
	}
	other := pending
	other.PodUID = "another"
	if _, err := await(other, time.Hour); !processor.IsStalled(err) || !strings.Contains(err.Error(), "it was replaced") {
		t.Errorf("another pod: %v", err)
	}
	pod = pod.DeepCopy()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Running("app")}
	pods.Set(pod)
	result, err := await(pending, time.Hour)
	if f := result.Findings; err != nil || len(f) != 3 || !f[0].Healed || !f[1].Healed || f[2].Healed || result.Values["running"] == "" {
		t.Errorf("a container that runs: %+v, %v", result, err)
	}
	for name, result := range map[string]processor.Result{
		"no wait": s.Conclude(request, pending, Options{}, processor.Result{Findings: findings}),
		"nothing": s.Conclude(request, Pending{}, Options{Wait: time.Hour}, processor.Result{Findings: findings}),
	} {
		if result.Wait != nil || result.Findings[0].Healed != (name == "nothing") {
			t.Errorf("%s: %+v", name, result)
		}
	}
}

// changingRuntime is a runtime whose records of a container are others each time they are asked for, the last ones for
// ever.
type changingRuntime struct {
	looks   [][]cri.Container
	removed []string
}

func (c *changingRuntime) Records(context.Context, string, string) ([]cri.Container, error) {
	now := c.looks[0]
	if len(c.looks) > 1 {
		c.looks = c.looks[1:]
	}
	return now, nil
}

func (c *changingRuntime) Remove(_ context.Context, r cri.Container) error {
	c.removed = append(c.removed, r.ID)
	return nil
}

// TestStartUnderWayMayFail: what the kubelet began before the mounts were repaired may fail after the plan was made,
// and the kubelet counts its back-off from that.
func TestStartUnderWayMayFail(t *testing.T) {
	t.Parallel()
	pod := kubelettest.NewPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Failing("app", "x")}
	failed := func(id string) cri.Container { return cri.Container{ID: id, Exited: true, ExitCode: 128} }
	starting, ran := cri.Container{ID: "new"}, cri.Container{ID: "ran", Exited: true, Started: time.Unix(100, 0)}
	running := cri.Container{ID: "new", Started: time.Unix(200, 0)}
	type looks = [][]cri.Container
	for name, c := range map[string]struct {
		looks   looks // the first is that of the plan
		planned []string
		removed []string
	}{
		"it has failed":      {looks{{failed("old"), ran}, {failed("new"), failed("old"), ran}}, []string{"old"}, []string{"new", "old"}},
		"twice":              {looks{{failed("old")}, {failed("2"), failed("1"), failed("old")}}, []string{"old"}, []string{"2", "1", "old"}},
		"it fails":           {looks{{failed("old")}, {starting, failed("old")}, {failed("new"), failed("old")}}, []string{"old"}, []string{"new", "old"}},
		"it succeeds":        {looks{{failed("old")}, {starting, failed("old")}, {running, failed("old")}}, []string{"old"}, []string{"old"}},
		"it is all there is": {looks{{failed("old")}, {failed("new")}}, []string{"old"}, []string{"new", "old"}},
		"the old one went":   {looks{{failed("old")}, {failed("new"), ran}}, []string{"old"}, []string{"new", "old"}},
		"it was seen":        {looks{{starting, ran}, {starting, ran}, {failed("new"), ran}}, []string{"new"}, []string{"new"}},
		"nothing is left":    {looks{{failed("old")}, {}}, []string{"old"}, []string{"old"}},
		"none is under way":  {looks{{failed("2"), failed("1"), ran}}, []string{"2", "1"}, []string{"2", "2", "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtime := &changingRuntime{looks: c.looks}
			s := Restarter{Runtime: runtime}
			var planned []string
			actions := s.Actions(t.Context(), PendingIn(pod, []string{"app"}), nil)
			for _, a := range actions {
				planned = append(planned, a.Record)
				if message := s.removeRecord(t.Context(), pod, a); !strings.HasPrefix(message, "removed") {
					t.Errorf("%+v: %s", a, message)
				}
			}
			if diff := cmp.Diff(c.planned, planned); diff != "" {
				t.Errorf("planned (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.removed, runtime.removed); diff != "" {
				t.Errorf("removed (-want +got):\n%s", diff)
			}
		})
	}
}
