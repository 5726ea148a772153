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

// Bounds of the findings on a screen: facts about a fault, bytes of the first fact, and groups of faults by volume. The report has all.
const (
	maxEvidence    = 3
	maxFactBytes   = 140
	maxFaultGroups = 4
)

// Faults are the findings with their evidence: the first fact, or more if the screen is to be verbose. Many findings are one line,
// and many lines have no evidence.
func Faults(s terminal.Screen, found []*v1.Fault, verbose bool) string {
	var b strings.Builder
	lines := foldFaults(found)
	for _, same := range lines {
		b.WriteString(s.Marked("  ", "✗", terminal.Red, same.name))
		if !verbose && len(lines) > maxAlike {
			continue
		}
		if entry, ok := fault.Known().Lookup(fault.Code(same.first.Code)); ok {
			b.WriteString(s.Wrap("    ", entry.Title, 4))
		}
		for i, fact := range same.first.Evidence[:min(len(same.first.Evidence), maxEvidence)] {
			switch {
			case !verbose && i > 0:
				continue
			case !verbose:
				fact = printable.Clip(fact, maxFactBytes)
			}
			b.WriteString(s.Paint(terminal.Dim, strings.TrimSuffix(s.Wrap("      ", printable.Quoted(fact), 8), "\n")) + "\n")
		}
	}
	return b.String()
}

// foldedFaults are faults that are one line.
type foldedFaults struct {
	first *v1.Fault
	name  string
}

// foldFaults gives each fault a line; many of one code and volume have one, and so have many of one code in many volumes.
func foldFaults(faults []*v1.Fault) (lines []foldedFaults) {
	code := func(f *v1.Fault) string { return f.Code }
	volume := func(f *v1.Fault) string { return f.Code + "\x00" + f.Volume }
	for _, same := range verb.Merge(faults, maxFaultGroups, volume, code) {
		if len(same) <= maxAlike {
			for _, f := range same {
				lines = append(lines, foldedFaults{f, FaultName(f)})
			}
			continue
		}
		first := same[0]
		name := first.Code
		if len(verb.Distinct(same, volume)) == 1 && first.Volume != "" {
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
		lines = append(lines, foldedFaults{first, name})
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
