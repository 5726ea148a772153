// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package podstatus reads from the status of a pod why it does not run, in the words of the scheduler or the kubelet. It
// judges no mount, and sends no request.
package podstatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/printable"
)

// maxMessage bounds the message that is quoted, in bytes.
const maxMessage = 200

// Reason is why a pod, or a container of it, does not run.
type Reason struct {
	// By is the scheduler or the kubelet.
	By string
	// Container is empty for a reason of the whole pod.
	Container string
	// Reason is one word, Message is the text beside it; it may be empty.
	Reason, Message string
	// Other is set if the reason cannot be a mount: it comes before any mount of the pod, or of the container, is made.
	Other bool
}

// The components whose words are quoted.
const (
	scheduler = "the scheduler"
	kubelet   = "the kubelet"
)

// starting are the reasons of containers that wait, and have no reason of their own.
var starting = []string{"", "ContainerCreating", "PodInitializing"}

// Why lists the reasons, those of the whole pod first. only narrows it to one container; empty means all of them.
func Why(pod *corev1.Pod, only string) []Reason {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason != "" {
			return []Reason{{By: scheduler, Reason: c.Reason, Message: clip(c.Message), Other: true}}
		}
	}
	var all []Reason
	if reason := pod.Status.Reason; reason != "" {
		other := podReasons[reason] == before || strings.HasPrefix(reason, outOf)
		all = append(all, Reason{By: kubelet, Reason: reason, Message: pod.Status.Message, Other: other})
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if r, ok := ofContainer(s); ok && (only == "" || only == s.Name) {
			all = append(all, r)
		}
	}
	for i := range all {
		all[i].Message = clip(all[i].Message)
	}
	return all
}

func ofContainer(s corev1.ContainerStatus) (Reason, bool) {
	r := Reason{By: kubelet, Container: s.Name}
	switch w, ended := s.State.Waiting, s.State.Terminated; {
	case w != nil && slices.Contains(starting, w.Reason):
		return r, false
	case w != nil:
		r.Reason, r.Message, r.Other = w.Reason, w.Message, whenWaiting(w.Reason, w.Message) == before
		if last := s.LastTerminationState.Terminated; last != nil && w.Reason == "CrashLoopBackOff" {
			r.Message = end(last)
		}
	case ended != nil && ended.ExitCode != 0:
		r.Reason, r.Message = cmp.Or(ended.Reason, "Terminated"), end(ended)
	default:
		return r, false
	}
	return r, true
}

func end(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("it ended with exit code %d (%s)", t.ExitCode, cmp.Or(t.Reason, "no reason"))
	if t.Message != "" {
		text += ": " + t.Message
	}
	return text
}

// Sentence says about a pod without a mount fault why it does not run, or that it does not wait.
func Sentence(pod *corev1.Pod, only string) string {
	name := pod.Namespace + "/" + pod.Name
	all := Why(pod, only)
	switch {
	case pod.DeletionTimestamp != nil: // it is not started again
		return fmt.Sprintf("No mount fault was found: pod %s is being deleted", name)
	case len(all) == 0 && waits(pod, only):
		return fmt.Sprintf("No mount fault was found: the kubelet still creates containers of pod %s; kubectl describe pod -n %s %s shows "+
			"what they wait for", name, pod.Namespace, pod.Name)
	case len(all) == 0:
		return fmt.Sprintf("No mount fault was found: pod %s does not wait for anything", name)
	}
	text := "No mount fault was found: "
	if !slices.ContainsFunc(all, func(r Reason) bool { return !r.Other }) {
		text = "It is not a mount: "
	}
	first := all[0]
	text += fmt.Sprintf("%s says %s about ", first.By, first.Reason)
	if first.Container != "" {
		text += fmt.Sprintf("container %q of ", first.Container)
	}
	text += "pod " + name
	if first.Message != "" {
		text += ": " + first.Message
	}
	if more := len(all) - 1; more > 0 {
		text += fmt.Sprintf("; and of %d more: %s", more, all[1].Reason)
	}
	return text
}

// waits reports whether a container neither runs nor has succeeded.
func waits(pod *corev1.Pod, only string) bool {
	if len(pod.Status.ContainerStatuses) == 0 {
		return pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
	}
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running == nil && s.State.Terminated == nil && (only == "" || only == s.Name)
	})
}

// clip makes one line of a text that others wrote, and cuts it.
func clip(text string) string {
	return printable.Clip(strings.Join(strings.Fields(text), " "), maxMessage)
}
