// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
)

// maxHint bounds how much of a message is quoted, in bytes.
const maxHint = 512

// Hint is a message about a container that points at faults. The kubelet or the runtime wrote it, but it quotes names that
// the pod's author chose.
type Hint struct {
	// Where is the part of the status that has it.
	Where, Text string
	Codes       []fault.Code
}

// Hints reads the messages in a container's status that say why it was not started. What a container has written itself,
// to its termination log or its output, is in the status of one that ran, and is not heeded.
func Hints(s corev1.ContainerStatus) []Hint {
	var found []Hint
	for _, r := range refusals(s) {
		if codes := fault.Suspect(r.text); len(codes) > 0 {
			found = append(found, Hint{r.where, r.text, codes})
		}
	}
	return found
}

// refusal is why a container was not started, and which part of its status says so.
type refusal struct{ where, text string }

var (
	// refusing are the reasons to wait that the kubelet gives where it, or the runtime, could not start the container.
	// Those of hooks and of images are not among them: their messages quote what a container or a registry says.
	refusing = []string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
	// unstarted are the reasons of runtimes for the end of a container that never ran: of containerd, and of Docker. That
	// no start is known does not prove it: after a restart, containerd does not know that of some that have run.
	unstarted = []string{"StartError", "ContainerCannotRun"}
)

// refusals lists why the last try to start a container failed. None where it runs, or has run since.
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

// String says plainly that it proves nothing.
func (h Hint) String() string {
	text := h.Text
	if len(text) > maxHint {
		text = strings.ToValidUTF8(text[:maxHint], "") + "…"
	}
	return fmt.Sprintf("hint only, proves nothing: the message in %s speaks of %s: %q", h.Where, join(h.Codes), text)
}

func join(codes []fault.Code) string {
	var names []string
	for _, c := range codes {
		names = append(names, string(c))
	}
	return strings.Join(names, " or ")
}

// containerEvidence tells the state of a container, what will become of it, and what its messages point at.
func containerEvidence(pod *corev1.Pod, name string) []string {
	s, known := StatusOf(pod, name)
	if !known {
		return []string{fmt.Sprintf("container %q has no status yet", name)}
	}
	evidence := []string{fmt.Sprintf("container %q: %s", name, Describe(s))}
	switch outlook, why := OutlookOf(pod, name); outlook {
	case Over:
		evidence = append(evidence, fmt.Sprintf("container %q is not started again: %s", name, why))
	case Rests:
		evidence = append(evidence, fmt.Sprintf("container %q rests: %s", name, why))
	}
	for _, h := range Hints(s) {
		evidence = append(evidence, h.String())
	}
	return evidence
}
