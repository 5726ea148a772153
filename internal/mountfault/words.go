// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"slices"
	"strings"
	"unicode/utf8"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/printable"
)

// Describe names the fault, its place and its cause: the first sentence of the evidence, if it has no path.
func Describe(code fault.Code, container, volume string, evidence []string) string {
	text := string(code)
	if entry, ok := fault.Known().Lookup(code); ok {
		text = entry.Title
	}
	why := ""
	if len(evidence) > 0 && kubeclient.WithoutPaths(evidence[0]) == evidence[0] {
		why = evidence[0]
	}
	return strings.Join(slices.DeleteFunc([]string{text, Whose(container, volume), why},
		func(part string) bool { return part == "" }), ": ")
}

// Whose names the container and the volume of a fault. A volume's own mount serves all containers.
func Whose(container, volume string) string {
	var parts []string
	if container != "" {
		parts = append(parts, "container "+container)
	}
	if volume != "" {
		parts = append(parts, "volume "+volume)
	}
	return strings.Join(parts, ", ")
}

// summary is one sentence: the place of the fault, the fault, and its harm to a pod.
func summary(s *v1.MountFaultStatus, fact string) string {
	of, harm := Whose(s.Container, s.Volume), ""
	if s.Pod == nil {
		of = s.Target
	}
	switch {
	case s.Impact == v1.ImpactTerminating:
		harm = "; the pod, which is being deleted, cannot go"
	case s.Impact == v1.ImpactNextStart:
		harm = "; the next start of the container fails"
	case s.Impact == v1.ImpactNow && fault.Code(s.Code).OfContainer():
		harm = "; the container cannot start now"
	case s.Impact == v1.ImpactNow:
		harm = "; the pod cannot use the volume now"
	}
	return kubeclient.EventMessage(strings.TrimPrefix(of+": "+fact, ": ")+harm, "")
}

// commands returns the first advised commands. It leaves a line out that is too long: a shortened command would act otherwise.
func commands(a fault.Advice) []v1.FaultCommand {
	var all []v1.FaultCommand
	for _, c := range a.Commands {
		if utf8.RuneCountInString(c.Line) <= v1.MaxFaultCommand && len(all) < v1.MaxFaultCommands {
			all = append(all, v1.FaultCommand{Purpose: printable.Clip(c.Purpose, v1.MaxFaultSummary), Line: c.Line})
		}
	}
	return all
}
