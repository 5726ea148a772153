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
}

func (w *waker) Wake(_ context.Context, namespace, name, uid string) error {
	w.woken = append(w.woken, namespace+"/"+name+" "+uid)
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
	if want := []string{pod.Namespace + "/" + pod.Name + " " + string(pod.UID)}; !slices.Equal(w.woken, want) {
		t.Errorf("woken %q, want %q", w.woken, want)
	}
	if actions := s.Actions(t.Context(), pod, WaitingOf(pod, []string{"sidecar"}), fault.StaleSubPath); len(actions) != 0 {
		t.Errorf("for a container that runs: %+v", actions)
	}
}

// TestFailureToWakeIsNoFailure: the kubelet is waited for instead, as where it may not be woken.
func TestFailureToWakeIsNoFailure(t *testing.T) {
	t.Parallel()
	pod := kubelettest.NewPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Failing("app", "x")}
	s := Starter{Waker: &waker{err: errors.New("pods is forbidden")}}
	actions := s.Actions(t.Context(), pod, WaitingOf(pod, []string{"app"}), fault.StaleSubPath)
	if len(actions) != 1 || actions[0].Kind != WakeKubelet {
		t.Fatalf("without a runtime: %+v, want to wake the kubelet", actions)
	}
	if message, ok := s.Apply(t.Context(), pod, actions[0]); !ok || !strings.Contains(message, "pods is forbidden") {
		t.Errorf("%q, %v, want why it was not woken", message, ok)
	}
	if message, ok := (Starter{}).Apply(t.Context(), pod, actions[0]); !ok || !strings.HasPrefix(message, "left alone") {
		t.Errorf("where it is not allowed any more: %q, %v", message, ok)
	}
	s = Starter{Runtime: records{"app": []cri.Container{{ID: "1", Exited: true, ExitCode: 128}}}}
	if actions := s.Actions(t.Context(), pod, WaitingOf(pod, []string{"app"}), fault.StaleSubPath); len(actions) != 1 || actions[0].Kind != RemoveRecord {
		t.Errorf("where it is not allowed: %+v", actions)
	}
}

// TestVolumesAreNotWritten: a volume with the pod's annotations would be written anew, and what is bound of it be stale.
func TestVolumesAreNotWritten(t *testing.T) {
	t.Parallel()
	files := func(path string) []corev1.DownwardAPIVolumeFile {
		return []corev1.DownwardAPIVolumeFile{
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}},
			{Path: "file", FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}},
		}
	}
	for path, want := range map[string]int{"metadata.annotations": 0, "metadata.labels": 1, "metadata.annotations['a']": 1} {
		for name, source := range map[string]corev1.VolumeSource{
			"downwardAPI": {DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: files(path)}},
			"projected": {Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{}}, {DownwardAPI: &corev1.DownwardAPIProjection{Items: files(path)}},
			}}},
		} {
			pod := kubelettest.NewPod()
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "info", VolumeSource: source})
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Failing("app", "x")}
			s := Starter{Waker: &waker{}}
			if actions := s.Actions(t.Context(), pod, WaitingOf(pod, []string{"app"}), fault.StaleSubPath); len(actions) != want {
				t.Errorf("%s of %s: actions %+v, want %d", name, path, actions, want)
			}
		}
	}
}
