// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpathremount

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/processor"
)

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values map[string]string
		want   options
		err    []string
	}{
		"none":                {nil, options{true, 45 * time.Second}, nil},
		"set":                 {map[string]string{ParamBringForward: "false", ParamWaitSeconds: "7"}, options{false, 7 * time.Second}, nil},
		"no wait":             {map[string]string{ParamBringForward: "true", ParamWaitSeconds: "0"}, options{true, 0}, nil},
		"not a boolean":       {map[string]string{ParamBringForward: "no"}, options{}, []string{ParamBringForward, `"no"`}},
		"not a number":        {map[string]string{ParamWaitSeconds: "1m"}, options{}, []string{ParamWaitSeconds, `"1m"`}},
		"negative":            {map[string]string{ParamWaitSeconds: "-1"}, options{}, []string{ParamWaitSeconds, `"-1"`}},
		"too long":            {map[string]string{ParamWaitSeconds: "3601"}, options{}, []string{ParamWaitSeconds, `"3601"`, "3600"}},
		"far too long":        {map[string]string{ParamWaitSeconds: "99999999999999999999"}, options{}, []string{ParamWaitSeconds}},
		"the origin's result": {map[string]string{"diagnoser.kubernetes.subpath_remount.original_destination_path": "/"}, options{true, 45 * time.Second}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := optionsOf(c.values)
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

func TestWaitFitsIntoTheOperation(t *testing.T) {
	t.Parallel()
	o := options{wait: 45 * time.Second}
	if got := o.within(t.Context()); got != o.wait {
		t.Errorf("without a deadline: %v, want %v", got, o.wait)
	}
	for left, want := range map[time.Duration]time.Duration{time.Minute: 45 * time.Second, 10 * time.Second: 8 * time.Second, time.Second: 0} {
		ctx, cancel := context.WithTimeout(t.Context(), left)
		defer cancel()
		if got := o.within(ctx); got > want || got < want-time.Second {
			t.Errorf("with %v left: %v, want %v", left, got, want)
		}
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
			if got := started(s, []string{"old"}); got != c.want {
				t.Errorf("started = %v, want %v", got, c.want)
			}
		})
	}
}

type noKubelet struct{}

func (noKubelet) Node(context.Context) (*kubelet.Node, error) { return nil, kubelet.ErrNotFound }

// TestBadRequests has every method say what is wrong before it looks at anything.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	good := processor.Request{Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: "default", Name: "web"}}
	for name, c := range map[string]struct {
		change func(*processor.Request)
		want   string
	}{
		"no pod":        {func(r *processor.Request) { r.Pod = processor.Pod{} }, "podReference"},
		"unknown pod":   {func(r *processor.Request) { r.Pod.Name = "gone" }, "default/gone"},
		"bad parameter": {func(r *processor.Request) { r.Values = map[string]string{ParamWaitSeconds: "x"} }, ParamWaitSeconds},
		"no kubelet":    {func(*processor.Request) {}, kubelet.ErrNotFound.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, pods := good, &kubelettest.Pods{}
			pods.Set(kubelettest.NewPod())
			c.change(&r)
			if _, err := (&Recoverer{Pods: pods, Kubelet: noKubelet{}}).Plan(t.Context(), r); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v does not speak of %q", err, c.want)
			}
		})
	}
	pods := &kubelettest.Pods{}
	pods.Set(kubelettest.NewPod())
	h := &Recoverer{Pods: pods, Kubelet: noKubelet{}}
	plan, err := h.Plan(t.Context(), processor.Request{Node: "other", Pod: good.Pod})
	if err != nil || plan.NotApplicable == "" {
		t.Errorf("on another node: %+v, %v, want not applicable", plan, err)
	}
	if _, err := h.Apply(t.Context(), good, processor.Action{Kind: "Reboot"}); err == nil || !strings.Contains(err.Error(), `"Reboot"`) {
		t.Errorf("action of an unknown kind: %v", err)
	}
	if _, err := h.Verify(t.Context(), good, processor.Plan{}); !processor.IsStalled(err) {
		t.Errorf("plan without notes: %v, want a stalled error", err)
	}
	if _, err := h.Apply(t.Context(), processor.Request{Node: "other", Pod: good.Pod}, processor.Action{Kind: Unmount}); !processor.IsStalled(err) {
		t.Errorf("action on another node: %v, want a stalled error", err)
	}
	if _, err := h.Apply(t.Context(), good, processor.Action{Kind: Unmount}); !errors.Is(err, kubelet.ErrNotFound) {
		t.Errorf("unmount without a kubelet: %v, want ErrNotFound", err)
	}
}
