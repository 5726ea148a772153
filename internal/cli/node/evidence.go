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
		v.field(&b, line[0], line[1])
	}
	v.field(&b, "heal", verb.Heals[f.Heal])
	v.field(&b, "plan", f.Plan)
	for _, line := range remedies(entry, v.program) {
		v.field(&b, line[0], line[1])
	}
	return b.String()
}

// field writes a line of a block, unless it says nothing. Evidence is not broken: it is read by machines, too.
func (v scanView) field(b *strings.Builder, name, value string) {
	if value != "" {
		fmt.Fprintf(b, "  %-10s %s\n", name, printable.Quoted(value))
	}
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
