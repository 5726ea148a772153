// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package restart

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
)

// waker writes down whom it wakes.
type waker struct {
	err   error
	woken []string
	none  bool // nobody can be woken
}

func (w *waker) Wakes(context.Context) bool { return !w.none }

func (w *waker) Wake(_ context.Context, namespace, name string) error {
	w.woken = append(w.woken, namespace+"/"+name)
	return w.err
}

// TestKubeletIsWokenLast: it must see that the records are gone. Nobody is woken for a pod that runs.
func TestKubeletIsWokenLast(t *testing.T) {
	t.Parallel()
	pod := kubelettest.NewPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Failing("app", "x"), kubelettest.Running("sidecar")}
	w := &waker{}
	s := Starter{Runtime: records{"app": {{ID: "1", Exited: true, ExitCode: 128}}}, Waker: w}
	var kinds []string
	for _, a := range s.Actions(t.Context(), pod, WaitingOf(pod, []string{"app"}), fault.StaleSubPath) {
		kinds = append(kinds, a.Kind+" "+string(a.Fault))
		message, ok := s.Apply(t.Context(), pod, a)
		if !ok || a.Kind == WakeKubelet && (message != "woken" || a.Target != pod.Namespace+"/"+pod.Name) {
			t.Errorf("%+v: %q, %v", a, message, ok)
		}
	}
	if want := []string{RemoveRecord + " StaleSubPath", WakeKubelet + " StaleSubPath"}; !slices.Equal(kinds, want) {
		t.Errorf("actions %q, want %q", kinds, want)
	}
	if want := []string{pod.Namespace + "/" + pod.Name}; !slices.Equal(w.woken, want) {
		t.Errorf("woken %q, want %q", w.woken, want)
	}
	w.none = true
	if actions := s.Actions(t.Context(), pod, WaitingOf(pod, []string{"app"}), fault.StaleSubPath); len(actions) != 1 {
		t.Errorf("where nobody can be woken: %+v", actions)
	}
	w.none = false
	if actions := s.Actions(t.Context(), pod, WaitingOf(pod, []string{"sidecar"}), fault.StaleSubPath); len(actions) != 0 {
		t.Errorf("for a container that runs: %+v", actions)
	}
}

// TestFailureToWakeIsNoFailure: the kubelet is waited for instead, as where nobody is there to wake it.
func TestFailureToWakeIsNoFailure(t *testing.T) {
	t.Parallel()
	pod := kubelettest.NewPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Failing("app", "x")}
	s := Starter{Waker: &waker{err: errors.New("the manager does not answer")}}
	actions := s.Actions(t.Context(), pod, WaitingOf(pod, []string{"app"}), fault.StaleSubPath)
	if len(actions) != 1 || actions[0].Kind != WakeKubelet {
		t.Fatalf("without a runtime: %+v, want to wake the kubelet", actions)
	}
	if message, ok := s.Apply(t.Context(), pod, actions[0]); !ok || !strings.Contains(message, "the manager does not answer") {
		t.Errorf("%q, %v, want why it was not woken", message, ok)
	}
	if message, ok := (Starter{}).Apply(t.Context(), pod, actions[0]); !ok || !strings.HasPrefix(message, "left alone") {
		t.Errorf("where nobody can any more: %q, %v", message, ok)
	}
	s = Starter{Runtime: records{"app": []cri.Container{{ID: "1", Exited: true, ExitCode: 128}}}}
	if actions := s.Actions(t.Context(), pod, WaitingOf(pod, []string{"app"}), fault.StaleSubPath); len(actions) != 1 || actions[0].Kind != RemoveRecord {
		t.Errorf("where nobody can: %+v", actions)
	}
}
