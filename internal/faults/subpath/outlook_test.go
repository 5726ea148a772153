// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
)

func ended1(code int32) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}}
}

func TestOutlookOf(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError"}}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, c := range map[string]struct {
		policy corev1.RestartPolicy
		state  corev1.ContainerState
		change func(*corev1.Pod)
		want   Outlook
		why    string
	}{
		"always, runs":                  {corev1.RestartPolicyAlways, runs, nil, Runs, ""},
		"always, waits":                 {corev1.RestartPolicyAlways, waits, nil, Waits, ""},
		"always, has ended":             {corev1.RestartPolicyAlways, ended1(0), nil, Waits, ""},
		"no policy, has ended":          {"", ended1(0), nil, Waits, ""},
		"on failure, has failed":        {corev1.RestartPolicyOnFailure, ended1(1), nil, Waits, ""},
		"on failure, has succeeded":     {corev1.RestartPolicyOnFailure, ended1(0), nil, Over, "succeeded"},
		"on failure, runs":              {corev1.RestartPolicyOnFailure, runs, nil, Runs, ""},
		"never, has failed":             {corev1.RestartPolicyNever, ended1(128), nil, Over, "Never"},
		"never, runs":                   {corev1.RestartPolicyNever, runs, nil, Over, "Never"},
		"never, could not be created":   {corev1.RestartPolicyNever, waits, nil, Waits, ""},
		"no state":                      {corev1.RestartPolicyAlways, corev1.ContainerState{}, nil, Waits, ""},
		"pod is being deleted":          {"", waits, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, Over, "deleted"},
		"pod has failed":                {"", waits, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, Over, "Failed"},
		"ephemeral":                     {"", ended1(1), func(p *corev1.Pod) { asEphemeral(p) }, Over, "only once"},
		"init, has succeeded":           {"", ended1(0), func(p *corev1.Pod) { asInit(p, nil) }, Rests, "sandbox"},
		"init, succeeded, policy never": {corev1.RestartPolicyNever, ended1(0), func(p *corev1.Pod) { asInit(p, nil) }, Over, "succeeded"},
		"init, succeeded, on failure":   {corev1.RestartPolicyOnFailure, ended1(0), func(p *corev1.Pod) { asInit(p, nil) }, Rests, "sandbox"},
		"init, has failed":              {"", ended1(1), func(p *corev1.Pod) { asInit(p, nil) }, Waits, ""},
		"init that stays, has ended":    {"", ended1(0), func(p *corev1.Pod) { asInit(p, &always) }, Waits, ""},
		"init that stays, policy never": {corev1.RestartPolicyNever, runs, func(p *corev1.Pod) { asInit(p, &always) }, Runs, ""},
		"no such container":             {"", runs, func(p *corev1.Pod) { p.Spec.Containers = nil }, Over, "no such container"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := kubelettest.NewPod()
			pod.Spec.RestartPolicy = c.policy
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: c.state}}
			if c.change != nil {
				c.change(pod)
			}
			if got, why := OutlookOf(pod, "app"); got != c.want || !strings.Contains(why, c.why) || why == "" {
				t.Errorf("outlook %s (%s), want %s (%s)", got, why, c.want, c.why)
			}
		})
	}
}

func asInit(pod *corev1.Pod, policy *corev1.ContainerRestartPolicy) {
	pod.Spec.Containers = nil
	pod.Spec.InitContainers = []corev1.Container{{Name: "app", RestartPolicy: policy}}
	pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = pod.Status.ContainerStatuses, nil
}

func asEphemeral(pod *corev1.Pod) {
	pod.Spec.Containers = nil
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "app"}}}
	pod.Status.EphemeralContainerStatuses, pod.Status.ContainerStatuses = pod.Status.ContainerStatuses, nil
}

// TestARunningContainerWithoutATime has a pod of a source that does not say since when.
func TestARunningContainerWithoutATime(t *testing.T) {
	t.Parallel()
	status := kubelettest.Running("app")
	if text := Describe(status); !strings.HasPrefix(text, "running since 2") {
		t.Errorf("%q, want the time", text)
	}
	status.State.Running = &corev1.ContainerStateRunning{}
	if text := Describe(status); text != "running" {
		t.Errorf("%q, want no time", text)
	}
}
