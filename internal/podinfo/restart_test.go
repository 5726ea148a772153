// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

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

func TestRestartStateOf(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError"}}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, c := range map[string]struct {
		policy corev1.RestartPolicy
		state  corev1.ContainerState
		change func(*corev1.Pod)
		want   RestartState
		why    string
	}{
		"always, runs":                  {corev1.RestartPolicyAlways, runs, nil, Running, ""},
		"always, waits":                 {corev1.RestartPolicyAlways, waits, nil, Waiting, ""},
		"always, has ended":             {corev1.RestartPolicyAlways, ended1(0), nil, Waiting, ""},
		"no policy, has ended":          {"", ended1(0), nil, Waiting, ""},
		"on failure, has failed":        {corev1.RestartPolicyOnFailure, ended1(1), nil, Waiting, ""},
		"on failure, has succeeded":     {corev1.RestartPolicyOnFailure, ended1(0), nil, Finished, "succeeded"},
		"on failure, runs":              {corev1.RestartPolicyOnFailure, runs, nil, Running, ""},
		"never, has failed":             {corev1.RestartPolicyNever, ended1(128), nil, Finished, "Never"},
		"never, runs":                   {corev1.RestartPolicyNever, runs, nil, Finished, "Never"},
		"never, could not be created":   {corev1.RestartPolicyNever, waits, nil, Waiting, ""},
		"no state":                      {corev1.RestartPolicyAlways, corev1.ContainerState{}, nil, Waiting, ""},
		"pod is being deleted":          {"", waits, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, Finished, "deleted"},
		"pod has failed":                {"", waits, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, Finished, "Failed"},
		"ephemeral":                     {"", ended1(1), func(p *corev1.Pod) { asEphemeral(p) }, Finished, "only once"},
		"init, has succeeded":           {"", ended1(0), func(p *corev1.Pod) { asInit(p, nil) }, Idle, "sandbox"},
		"init, succeeded, policy never": {corev1.RestartPolicyNever, ended1(0), func(p *corev1.Pod) { asInit(p, nil) }, Finished, "succeeded"},
		"init, succeeded, on failure":   {corev1.RestartPolicyOnFailure, ended1(0), func(p *corev1.Pod) { asInit(p, nil) }, Idle, "sandbox"},
		"init, has failed":              {"", ended1(1), func(p *corev1.Pod) { asInit(p, nil) }, Waiting, ""},
		"init that stays, has ended":    {"", ended1(0), func(p *corev1.Pod) { asInit(p, &always) }, Waiting, ""},
		"init that stays, policy never": {corev1.RestartPolicyNever, runs, func(p *corev1.Pod) { asInit(p, &always) }, Running, ""},
		"no such container":             {"", runs, func(p *corev1.Pod) { p.Spec.Containers = nil }, Finished, "no such container"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := kubelettest.NewPod()
			pod.Spec.RestartPolicy = c.policy
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: c.state}}
			if c.change != nil {
				c.change(pod)
			}
			if got, why := RestartStateOf(pod, "app"); got != c.want || !strings.Contains(why, c.why) || why == "" {
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
	if text := DescribeStatus(status); !strings.HasPrefix(text, "running since 2") {
		t.Errorf("%q, want the time", text)
	}
	status.State.Running = &corev1.ContainerStateRunning{}
	if text := DescribeStatus(status); text != "running" {
		t.Errorf("%q, want no time", text)
	}
}
