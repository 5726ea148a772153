// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
)

// remountAge is how old an Event about a pod that runs may be. The kubelet mounts ConfigMaps and Secrets again and again. While that
// fails it repeats the Event, at least every five minutes and its longest back-off. After that it has succeeded, which no Event says.
const remountAge = 10 * time.Minute

// Reasons of Events of a pod.
var (
	mountReasons = []string{"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedMountOnFilesystemMismatch"}
	// sandboxReason is for mounts and for much else. Its message decides.
	sandboxReason = "FailedCreatePodSandBox"
	// laterReasons are those of Events that the kubelet writes once the volumes of the pod are mounted and it has a sandbox.
	laterReasons = []string{"Pulling", "Pulled", "Created", "Started", "BackOff", "Failed", "Killing", "Unhealthy"}
	// attachedReason is that of a volume that was attached after all.
	attachedReason = "SuccessfulAttachVolume"
)

var (
	volumeInMessage = regexp.MustCompile(`for volume "([^"]+)"`)
	mountInMessage  = regexp.MustCompile(`(?i)\b(re|un)?mount`)
)

// podEvents has the last Event of a pod about its volumes.
type podEvents struct {
	pod *corev1.Pod
	// last is the last Event about a volume that could not be mounted, or nil.
	last *corev1.Event
	// unread says why the Events could not be read.
	unread error
}

// mountEvents reads the Events of a pod. A Diagnosis of no pod has none.
func (c *client) mountEvents(ctx context.Context, d *v1.Diagnosis) podEvents {
	ref := d.Spec.PodReference
	if ref == nil {
		return podEvents{}
	}
	pod := &corev1.Pod{}
	err := c.server.Get(ctx, ctrlclient.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, pod)
	if errors.Is(err, errMissing) { // it waits for nothing any more
		return podEvents{}
	}
	if err != nil {
		return podEvents{unread: err}
	}
	var list corev1.EventList
	about := ctrlclient.MatchingFields{"involvedObject.kind": "Pod", "involvedObject.uid": string(pod.UID)}
	if err := c.server.List(ctx, &list, ctrlclient.InNamespace(ref.Namespace), about); err != nil {
		return podEvents{pod: pod, unread: err}
	}
	return podEvents{pod: pod, last: lastMountEvent(pod, list.Items, mountedTime(pod, list.Items), time.Now())}
}

// lastMountEvent is the last Event about a mount that failed and that nothing has answered since; nil if there is none. Events with
// the name of a volume come before those that only say that a time is over. mounted is when all volumes were mounted last.
func lastMountEvent(pod *corev1.Pod, list []corev1.Event, mounted, now time.Time) (last *corev1.Event) {
	if slices.Contains([]corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed}, pod.Status.Phase) {
		return nil
	}
	running := !slices.ContainsFunc(containerStatuses(pod), func(s corev1.ContainerStatus) bool { return s.State.Waiting != nil }) && pod.Status.Phase == corev1.PodRunning
	for i := range list {
		e := &list[i]
		at := eventTime(e)
		switch {
		case e.InvolvedObject.UID != pod.UID || !at.After(mounted):
		case !slices.Contains(mountReasons, e.Reason) && (e.Reason != sandboxReason || !mountInMessage.MatchString(e.Message)): // of something else
		case running && now.Sub(at) > remountAge:
		case e.Reason == "FailedAttachVolume" && slices.ContainsFunc(list, func(other corev1.Event) bool {
			return other.Reason == attachedReason && volumeOf(&other) == volumeOf(e) && eventTime(&other).After(at)
		}): // the volume was attached later
		case last == nil || volumeOf(last) == "" && volumeOf(e) != "":
			last = e
		case (volumeOf(last) != "") == (volumeOf(e) != "") && at.After(eventTime(last)):
			last = e
		}
	}
	return last
}

// volumeOf is the volume that the message of an Event names: as the pod's spec does, or the PersistentVolume.
func volumeOf(e *corev1.Event) string {
	if found := volumeInMessage.FindStringSubmatch(e.Message); found != nil {
		return found[1]
	}
	return ""
}

// eventTime is when an Event happened last.
func eventTime(e *corev1.Event) time.Time {
	at := e.LastTimestamp.Time
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	if e.EventTime.After(at) {
		at = e.EventTime.Time
	}
	return at
}

func containerStatuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses)
}

// mountedTime is the last time at which all volumes of the pod were mounted for sure: the kubelet makes the sandbox and starts
// containers only after that. Zero: it is not known that they ever were.
func mountedTime(pod *corev1.Pod, list []corev1.Event) (last time.Time) {
	add := func(at time.Time) {
		if at.After(last) {
			last = at
		}
	}
	for _, s := range containerStatuses(pod) {
		for _, state := range []corev1.ContainerState{s.State, s.LastTerminationState} {
			if state.Running != nil {
				add(state.Running.StartedAt.Time)
			}
			if state.Terminated != nil {
				add(state.Terminated.StartedAt.Time)
			}
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue {
			add(c.LastTransitionTime.Time)
		}
	}
	for i := range list {
		if list[i].InvolvedObject.UID == pod.UID && slices.Contains(laterReasons, list[i].Reason) {
			add(eventTime(&list[i]))
		}
	}
	return last
}

// hints are commands about the Event: they show the object that the volume is made of, by the pod's spec, and the pod.
func (e podEvents) hints(c *client) (list []terminal.Hint) {
	kubectl := func(purpose string, args ...string) {
		list = append(list, terminal.Hint{Line: c.kubectlLine(args...), Purpose: purpose})
	}
	namespace := e.pod.Namespace
	name := volumeOf(e.last)
	i := slices.IndexFunc(e.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	var claims []string
	for _, v := range e.pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			claims = append(claims, v.PersistentVolumeClaim.ClaimName)
		}
	}
	if i >= 0 {
		switch v := e.pod.Spec.Volumes[i]; {
		case v.Secret != nil:
			kubectl("volume "+name+" is made of it", "get", "secret", v.Secret.SecretName, "-n", namespace)
		case v.ConfigMap != nil:
			kubectl("volume "+name+" is made of it", "get", "configmap", v.ConfigMap.Name, "-n", namespace)
		case v.CSI != nil:
			kubectl("its drivers; volume "+name+" needs "+v.CSI.Driver, "get", "csinode", e.pod.Spec.NodeName, "-o", "yaml")
		}
	} else if len(claims) > 0 {
		kubectl("the claims of the pod, and their PersistentVolumes", append([]string{"get", "pvc", "-n", namespace}, claims...)...)
		if e.last.Reason == "FailedAttachVolume" {
			kubectl("which node has each volume", "get", "volumeattachments")
		}
	}
	kubectl("all its Events", "describe", "pod", "-n", namespace, e.pod.Name)
	return list
}
