// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
)

// maxHint bounds how much of a message is quoted, in bytes.
const maxHint = 512

// Hint is a message about a container that points at faults. The container itself may have written it.
type Hint struct {
	// Where is the part of the status that has it.
	Where, Text string
	Codes       []fault.Code
}

// Hints reads the messages in a container's status.
func Hints(s corev1.ContainerStatus) []Hint {
	var found []Hint
	add := func(where, text string) {
		if codes := fault.Suspect(text); len(codes) > 0 {
			found = append(found, Hint{where, text, codes})
		}
	}
	if s.State.Waiting != nil {
		add("state.waiting", s.State.Waiting.Message)
	}
	if s.State.Terminated != nil {
		add("state.terminated", s.State.Terminated.Message)
	}
	if s.LastTerminationState.Terminated != nil {
		add("lastState.terminated", s.LastTerminationState.Terminated.Message)
	}
	return found
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
