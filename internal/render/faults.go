// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"strings"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// maxEvidence is how many facts are shown about a fault. The report shows all of them.
const maxEvidence = 3

// Faults are the findings with their evidence. Many of one volume are one line, with the evidence of the first.
func Faults(s terminal.Screen, found []*v1.Fault) string {
	var b strings.Builder
	for _, same := range foldFaults(found) {
		b.WriteString(s.Marked("  ", "✗", terminal.Red, same.name))
		if entry, ok := fault.Known().Lookup(fault.Code(same.first.Code)); ok {
			b.WriteString(s.Wrap("    ", entry.Title, 4))
		}
		for _, fact := range same.first.Evidence[:min(len(same.first.Evidence), maxEvidence)] {
			b.WriteString(s.Paint(terminal.Dim, strings.TrimSuffix(s.Wrap("      ", printable.Quoted(fact), 8), "\n")) + "\n")
		}
	}
	return b.String()
}

// Healed says which faults are gone.
func Healed(s terminal.Screen, gone []*v1.Fault) string {
	var b strings.Builder
	for _, same := range foldFaults(gone) {
		b.WriteString(s.Marked("  ", "✓", terminal.Green, same.name+" "+map[bool]string{true: "are", false: "is"}[same.many]+" healed"))
	}
	return b.String()
}

// foldedFaults are faults that are one line.
type foldedFaults struct {
	first *v1.Fault
	name  string
	many  bool
}

// foldFaults gives each fault a line; many of one code and volume have one.
func foldFaults(faults []*v1.Fault) (lines []foldedFaults) {
	for _, same := range verb.Group(faults, func(f *v1.Fault) string { return f.Code + "\x00" + f.Volume }) {
		if len(same) <= maxAlike {
			for _, f := range same {
				lines = append(lines, foldedFaults{f, FaultName(f), false})
			}
			continue
		}
		first := same[0]
		name := first.Code
		if first.Volume != "" {
			name += ": volume " + first.Volume
		}
		pods := verb.Distinct(same, func(f *v1.Fault) string {
			if f.Pod == nil {
				return ""
			}
			return f.Pod.Namespace + "/" + f.Pod.Name
		})
		name += fmt.Sprintf(": %d faults", len(same))
		if len(pods) > 0 {
			name += " of " + verb.Count(len(pods), "pod")
		}
		lines = append(lines, foldedFaults{first, name, true})
	}
	return lines
}

// FaultName is the code of a fault and its place.
func FaultName(f *v1.Fault) string { return f.Code + faultPlace(f) }

// faultPlace is the place of a fault.
func faultPlace(f *v1.Fault) string {
	var parts []string
	for _, p := range []struct{ name, value string }{{"container", f.Container}, {"volume", f.Volume}, {"held by", f.Holder}} {
		if p.value != "" {
			parts = append(parts, p.name+" "+p.value)
		}
	}
	if f.Pod != nil && f.Pod.Name != "" {
		parts = append(parts, "pod "+f.Pod.Namespace+"/"+f.Pod.Name)
	} else if f.Mount != nil && f.Mount.Device != "" {
		parts = append(parts, "device "+f.Mount.Device)
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}
