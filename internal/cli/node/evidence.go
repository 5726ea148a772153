// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
)

// evidence is a fault with all that is known of it.
func (v scanView) evidence(f *scanFault) string {
	var b strings.Builder
	entry, _ := fault.Lookup(f.Code)
	fmt.Fprintf(&b, "%d. %s (%s): %s\n", f.Place, f.Code, entry.Severity, entry.Title)
	held := ""
	if f.Code == fault.HeldDevice {
		held = f.Mount.Device
	}
	for _, line := range append([][2]string{
		{"hurts", verb.Hurts[f.Impact]}, {"pod", f.Pod.String()}, {"workload", f.Details.Workload.String()}, {"container", f.Container},
		{"volume", f.Volume}, {"device", held}, {"mount", f.Mount.Point}, {"driver", f.Details.Driver}, {"holder", f.holder()},
	}, f.why()...) {
		row(&b, 2, line[0], line[1])
	}
	row(&b, 2, "heal", verb.Heals[f.Heal])
	row(&b, 2, "plan", f.Plan)
	for _, line := range remedies(entry, v.program) {
		row(&b, 2, line[0], line[1])
	}
	return b.String()
}

func (f *scanFault) why() (lines [][2]string) {
	label := "why"
	for _, e := range f.Evidence {
		lines = append(lines, [2]string{label, e})
		label = ""
	}
	return lines
}

// holder is who holds the device. The driver of a volume has a line of its own.
func (f *scanFault) holder() string {
	if f.Details.Driver != "" {
		return ""
	}
	return f.Holder
}

// remedies are what to do about a fault, as lines of text.
func remedies(entry fault.Entry, p shellName) [][2]string {
	return [][2]string{{"repair", entry.Repair}, {"runbook", p.line("kubediag explain " + string(entry.Code))}}
}
