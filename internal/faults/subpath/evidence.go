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

// WrongKindMessage reports that a container was refused, or never ran, because a file was to be mounted onto a
// directory or the reverse, and quotes the part of its status that says so. The kubelet or the runtime wrote it: the
// output of a container, or of its hooks, does not count.
func WrongKindMessage(s corev1.ContainerStatus) (quote string, ok bool) {
	for _, r := range startRefusals(s) {
		if describesWrongKind(r.message) {
			return fmt.Sprintf("%s of the container says: %q", r.statusField, clipQuote(r.message)), true
		}
	}
	return "", false
}

// describesWrongKind reports whether a text about a mount is worded as runtimes word that one is a file and the other a
// directory.
func describesWrongKind(text string) bool {
	text = strings.ToLower(strings.Join(strings.Fields(text), " "))
	has := func(phrase string) bool { return strings.Contains(text, phrase) }
	return slices.ContainsFunc([]string{"mount", "subpath", "rootfs", "createcontainerconfigerror", "generate spec"}, has) &&
		slices.ContainsFunc([]string{"not a directory", "is a directory", "onto a file", "onto a directory"}, has)
}

func clipQuote(text string) string {
	if len(text) > maxQuoted {
		text = strings.ToValidUTF8(text[:maxQuoted], "") + "…"
	}
	return text
}

// startRefusal is why a container was not started, and which part of its status says so.
type startRefusal struct{ statusField, message string }

var (
	// refusalReasons are the reasons to wait that the kubelet gives if it, or the runtime, could not start the
	// container. Those of hooks and of images are not among them: their messages quote what a container or a registry
	// says.
	refusalReasons = []string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
	// neverRanReasons are the reasons of runtimes for the end of a container that never ran: of containerd, and of
	// Docker. A missing start time does not prove it: after a restart, containerd lacks the start time of some that
	// have run.
	neverRanReasons = []string{"StartError", "ContainerCannotRun"}
)

// startRefusals lists why the last try to start a container failed. None if it runs, or has run since.
func startRefusals(s corev1.ContainerStatus) (found []startRefusal) {
	if w := s.State.Waiting; w != nil && slices.Contains(refusalReasons, w.Reason) {
		found = append(found, startRefusal{"state.waiting", w.Message})
	}
	now, last := s.State.Terminated, s.LastTerminationState.Terminated
	if containerNeverRan(now) {
		found = append(found, startRefusal{"state.terminated", now.Message})
	}
	if containerNeverRan(last) && s.State.Running == nil && (now == nil || containerNeverRan(now)) {
		found = append(found, startRefusal{"lastState.terminated", last.Message})
	}
	return found
}

func containerNeverRan(t *corev1.ContainerStateTerminated) bool {
	return t != nil && slices.Contains(neverRanReasons, t.Reason)
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
		evidence = append(evidence, fmt.Sprintf("container %q is idle: %s", name, why))
	}
	return evidence
}
