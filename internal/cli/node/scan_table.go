// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// subjectText names the pods, the workload, the device or the path that is hurt.
func (p faultPlace) subjectText() string {
	first := p.faults[0]
	if first.Impact == fault.ImpactDetach {
		devices := verb.Distinct(p.faults, (*scanFault).deviceText)
		if len(devices) != 1 {
			return fmt.Sprintf("%d devices", len(devices))
		}
		text := devices[0]
		if number := first.Mount.Device; number != "" && !strings.HasSuffix(text, number) {
			text += " (" + number + ")"
		}
		return printable.Quoted(text)
	}
	pods := p.podNames()
	owners := verb.Distinct(p.faults, (*scanFault).subjectKey)
	spaces := verb.Distinct(p.faults, func(f *scanFault) string { return f.Pod.Namespace })
	switch {
	case len(pods) == 0:
		if paths := verb.Distinct(p.faults, func(f *scanFault) string { return f.Details.Path }); len(paths) == 1 {
			return printable.Quoted(paths[0])
		}
		return ""
	case len(pods) == 1:
		return printable.Quoted(pods[0])
	case len(owners) == 1 && len(spaces) == 1:
		return printable.Quoted(spaces[0]+"/"+verb.NameStem(first.Pod.Name)) + fmt.Sprintf(" ×%d", len(pods))
	case len(spaces) == 1:
		return printable.Quoted(spaces[0]) + fmt.Sprintf(": %d pods", len(pods))
	case len(spaces) > 1:
		return fmt.Sprintf("%d pods in %d namespaces", len(pods), len(spaces))
	}
	return fmt.Sprintf("%d pods", len(pods))
}

// volumeText is the volume, or how many there are.
func (p faultPlace) volumeText() string {
	return verb.Common(p.faults, func(f *scanFault) string { return f.Volume }, "volumes")
}

// reasonText is one sentence: the containers, the volume if it has no column, and the fault.
func (p faultPlace) reasonText(volume bool) string {
	const maxContainers = 3
	var who []string
	containers := verb.Distinct(p.faults, func(f *scanFault) string { return f.Container })
	if p.faults[0].Impact == fault.ImpactDetach {
		containers = nil // that of the holder
	}
	for _, name := range containers[:min(len(containers), maxContainers)] {
		who = append(who, printable.Quoted(name))
	}
	if more := len(containers) - maxContainers; more > 0 {
		who = append(who, fmt.Sprintf("%d more", more))
	}
	text := strings.Join(who, ", ")
	if at := p.volumeText(); volume && at != "" {
		if text != "" {
			text += " on "
		}
		text += at
	}
	if other := verb.Common(p.faults, func(f *scanFault) string { // the other name of the volume
		if name := f.Details.PersistentVolume; name != "" && name != f.Volume {
			return "PersistentVolume " + name
		}
		return ""
	}, "PersistentVolumes"); other != "" {
		if text != "" {
			text += ", "
		}
		text += other
	}
	if text != "" {
		text += ": "
	}
	return text + printable.Quoted(p.faults[0].Summary)
}
