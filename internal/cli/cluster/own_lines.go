// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// writeOwnLines composes the lines of a MountFault from the catalogue. One last line counts the lines that the catalogue does not have.
func (c *client) writeOwnLines(composer *fault.Composer, f *v1.MountFault) {
	s := &f.Status
	about := fault.Finding{
		Code: fault.Code(s.Code), Mount: fault.Mount{Device: s.Device}, Details: fault.Details{Device: s.Device},
	}
	switch {
	case s.Pod != nil && s.Pod.Namespace == f.Namespace:
		about.Pod = fault.Pod{Namespace: s.Pod.Namespace, Name: s.Pod.Name, UID: string(s.Pod.UID)}
	case s.Pod == nil:
		about.Pod.UID = s.Target[strings.LastIndexByte(s.Target, '/')+1:] // of a directory that is left
	}
	if w := s.Workload; w != nil {
		about.Details.Workload = fault.Workload{Kind: w.Kind, Name: w.Name}
	}
	written := make([]fault.Command, 0, len(s.Commands))
	for _, command := range s.Commands {
		written = append(written, fault.Command{Purpose: command.Purpose, Line: command.Line})
	}
	own := composer.Compose(about, written)
	s.Commands = nil
	for _, command := range own {
		s.Commands = append(s.Commands, v1.FaultCommand{Purpose: printable.Clip(command.Purpose, v1.MaxFaultSummary), Line: command.Line})
	}
	if n := len(written) - len(own); n > 0 {
		s.Commands = append(s.Commands, v1.FaultCommand{
			Purpose: fmt.Sprintf("checks the agents; left out: %s of the object, which this kubediag would not print for this fault", verb.Count(n, "line")),
			Line:    c.commandLine("doctor"),
		})
	}
}

// checkNames replaces a dash in front, in each field of a MountFault that becomes a word of a line: a name is no flag.
func checkNames(f *v1.MountFault) {
	s := &f.Status
	names := []*string{&s.Code, &s.Node, &s.Diagnosis}
	if s.Pod != nil {
		names = append(names, &s.Pod.Namespace, &s.Pod.Name)
	}
	if s.Recovery != nil {
		names = append(names, &s.Recovery.PausedBy)
	}
	for _, name := range names {
		parts := strings.Split(*name, "/")
		for i, part := range parts {
			if rest, flag := strings.CutPrefix(part, "-"); flag {
				parts[i] = "?" + rest
			}
		}
		*name = strings.Join(parts, "/")
	}
}
