// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/podinfo"
)

// maxQuoted bounds how much of a message is quoted, in bytes.
const maxQuoted = 512

// WrongKind reports that a container was refused, or never ran, because a file was to be mounted onto a directory or the
// reverse, and quotes the part of its status that says so. The kubelet or the runtime wrote it: the output of a container,
// or of its hooks, does not count.
func WrongKind(s corev1.ContainerStatus) (quote string, ok bool) {
	for _, r := range refusals(s) {
		if ofWrongKind(r.text) {
			return fmt.Sprintf("%s of the container says: %q", r.where, clip(r.text)), true
		}
	}
	return "", false
}

// ofWrongKind reports whether a text about a mount is worded as runtimes word that one is a file and the other a directory.
func ofWrongKind(text string) bool {
	text = strings.ToLower(strings.Join(strings.Fields(text), " "))
	has := func(phrase string) bool { return strings.Contains(text, phrase) }
	return slices.ContainsFunc([]string{"mount", "subpath", "rootfs", "createcontainerconfigerror", "generate spec"}, has) &&
		slices.ContainsFunc([]string{"not a directory", "is a directory", "onto a file", "onto a directory"}, has)
}

func clip(text string) string {
	if len(text) > maxQuoted {
		text = strings.ToValidUTF8(text[:maxQuoted], "") + "…"
	}
	return text
}

// refusal is why a container was not started, and which part of its status says so.
type refusal struct{ where, text string }

var (
	// refusing are the reasons to wait that the kubelet gives if it, or the runtime, could not start the container.
	// Those of hooks and of images are not among them: their messages quote what a container or a registry says.
	refusing = []string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
	// unstarted are the reasons of runtimes for the end of a container that never ran: of containerd, and of Docker. A
	// missing start time does not prove it: after a restart, containerd lacks the start time of some that have run.
	unstarted = []string{"StartError", "ContainerCannotRun"}
)

// refusals lists why the last try to start a container failed. None if it runs, or has run since.
func refusals(s corev1.ContainerStatus) (found []refusal) {
	if w := s.State.Waiting; w != nil && slices.Contains(refusing, w.Reason) {
		found = append(found, refusal{"state.waiting", w.Message})
	}
	now, last := s.State.Terminated, s.LastTerminationState.Terminated
	if neverRan(now) {
		found = append(found, refusal{"state.terminated", now.Message})
	}
	if neverRan(last) && s.State.Running == nil && (now == nil || neverRan(now)) {
		found = append(found, refusal{"lastState.terminated", last.Message})
	}
	return found
}

func neverRan(t *corev1.ContainerStateTerminated) bool {
	return t != nil && slices.Contains(unstarted, t.Reason)
}

// containerEvidence returns the state of a container, and what will become of it.
func containerEvidence(pod *corev1.Pod, name string) []string {
	s, known := podinfo.ContainerStatus(pod, name)
	if !known {
		return []string{fmt.Sprintf("container %q has no status yet", name)}
	}
	evidence := []string{fmt.Sprintf("container %q: %s", name, podinfo.DescribeStatus(s))}
	switch outlook, why := podinfo.RestartStateOf(pod, name); outlook {
	case podinfo.Finished:
		evidence = append(evidence, fmt.Sprintf("container %q is not started again: %s", name, why))
	case podinfo.Idle:
		evidence = append(evidence, fmt.Sprintf("container %q rests: %s", name, why))
	}
	return evidence
}
