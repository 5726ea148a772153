// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/podinfo"
)

// containsPath reports whether a text has that path in it, and not only as part of a longer one.
func containsPath(text, name string) bool {
	return findPath(text, path.Clean(name), func(before string) bool { return !isPathByte(before, len(before)-1) })
}

// containsPathEnd reports whether a text has a path that ends so.
func containsPathEnd(text, end string) bool {
	return findPath(text, end, func(string) bool { return true })
}

func findPath(text, name string, fits func(before string) bool) bool {
	for name != "/" {
		before, after, ok := strings.Cut(text, name)
		if !ok {
			return false
		}
		if fits(before) && !isPathByte(strings.TrimPrefix(after, "/"), 0) {
			return true
		}
		text = after
	}
	return false
}

func isPathByte(text string, i int) bool {
	if i < 0 || i >= len(text) {
		return false
	}
	c := text[i]
	return strings.IndexByte("/._-", c) >= 0 || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
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

// containerEvidence returns the state of a container, and its outlook.
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
