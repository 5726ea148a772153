// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// RestartState is the next state of a container if the kubelet can start it.
type RestartState string

// The states.
const (
	// Running: the container runs, and is started again after it ends.
	Running RestartState = "Running"
	// Waiting: the container does not run and will be started.
	Waiting RestartState = "Waiting"
	// Idle: an init container that has succeeded. It runs again only if the pod's sandbox is recreated.
	Idle RestartState = "Idle"
	// Finished: the container is not started again, also if its mounts are repaired.
	Finished RestartState = "Finished"
)

// NotStarting reports whether the kubelet is not just starting the container, as far as the pod's status says: it runs,
// has ended, or waits for its back-off.
func NotStarting(pod *corev1.Pod, name string) bool {
	if pod == nil {
		return false
	}
	s, known := ContainerStatus(pod, name)
	waiting := s.State.Waiting
	return known && (s.State.Running != nil || s.State.Terminated != nil || waiting != nil && waiting.Reason == "CrashLoopBackOff")
}

// Ended reports whether the pod is over, by its phase: no container of it is started again, and the kubelet takes its
// volumes away.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// LastEnd returns when the last container of the pod has ended, by its status; the zero time if that has no ended one.
func LastEnd(pod *corev1.Pod) (last time.Time) {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses) {
		if ended := s.State.Terminated; ended != nil && ended.FinishedAt.After(last) {
			last = ended.FinishedAt.Time
		}
	}
	return last
}

// Unstarted lists the containers of a pod that neither run nor have succeeded, in the order of its spec. only narrows
// it to one container; empty means all of them.
func Unstarted(pod *corev1.Pod, only string) []string {
	states := map[string]corev1.ContainerState{}
	for _, list := range [][]corev1.ContainerStatus{
		pod.Status.EphemeralContainerStatuses, pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses,
	} {
		for _, s := range slices.Backward(list) { // the first of a name counts
			states[s.Name] = s.State
		}
	}
	var names []string
	for _, c := range containers(pod) {
		state := states[c.name]
		ended := state.Terminated
		if state.Running == nil && (ended == nil || ended.ExitCode != 0) && (only == "" || only == c.name) {
			names = append(names, c.name)
		}
	}
	return names
}

// RestartStateOf returns the next state of a container of the pod, and why.
func RestartStateOf(pod *corev1.Pod, name string) (RestartState, string) {
	c, ok := findContainer(pod, name)
	switch {
	case !ok:
		return Finished, "the pod has no such container"
	case pod.DeletionTimestamp != nil:
		return Finished, "the pod is being deleted"
	case Ended(pod):
		return Finished, fmt.Sprintf("the pod has ended (%s)", pod.Status.Phase)
	case c.kind == ephemeral:
		return Finished, "an ephemeral container is started only once"
	}
	s, known := ContainerStatus(pod, name)
	if !known || s.State.Running == nil && s.State.Terminated == nil {
		return Waiting, "it waits to be started"
	}
	ended := s.State.Terminated
	succeeded, policy := ended != nil && ended.ExitCode == 0, pod.Spec.RestartPolicy
	switch {
	case !c.always && succeeded && c.kind == initial && policy != corev1.RestartPolicyNever: // a pod that never restarts gets no other sandbox
		return Idle, "it has succeeded, and runs again only if the pod's sandbox is created again"
	case !c.always && succeeded && (c.kind == initial || policy == corev1.RestartPolicyOnFailure):
		return Finished, "it has succeeded"
	case !c.always && policy == corev1.RestartPolicyNever:
		return Finished, "restartPolicy is Never"
	case s.State.Running != nil:
		return Running, "it runs"
	}
	return Waiting, "it has ended and will be started again"
}

// ContainerStatus returns the status of the container of that name, of any kind.
func ContainerStatus(pod *corev1.Pod, name string) (corev1.ContainerStatus, bool) {
	for _, list := range [][]corev1.ContainerStatus{
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for _, s := range list {
			if s.Name == name {
				return s, true
			}
		}
	}
	return corev1.ContainerStatus{}, false
}

// DescribeStatus describes a container's status in one line.
func DescribeStatus(status corev1.ContainerStatus) string {
	text := "state unknown"
	switch {
	case status.State.Running != nil && status.State.Running.StartedAt.IsZero():
		text = "running" // not every source of pods says since when
	case status.State.Running != nil:
		text = "running since " + status.State.Running.StartedAt.UTC().Format("2006-01-02T15:04:05Z")
	case status.State.Waiting != nil:
		text = fmt.Sprintf("waiting (%s)", status.State.Waiting.Reason)
	case status.State.Terminated != nil:
		text = "ended: " + ended(status.State.Terminated)
	}
	if last := status.LastTerminationState.Terminated; last != nil {
		text += ", before that: " + ended(last)
	}
	return text
}

func ended(t *corev1.ContainerStateTerminated) string {
	return fmt.Sprintf("%s, exit code %d", t.Reason, t.ExitCode)
}
