// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// Widths from which on the table has more columns.
const (
	wideTable   = 100 // the volume has a column
	narrowTable = 60  // the subject has one
)

// table has a row for each place and the reason below it.
func (v scanView) table(places []faultPlace) string {
	cells := [][]string{{"#", "FAULT", "HURTS", "HEAL", "POD OR DEVICE"}}
	wide := v.Width == 0 || v.Width >= wideTable
	if wide {
		cells[0] = append(cells[0], "VOLUME")
	}
	for _, p := range places {
		first := p.faults[0]
		row := []string{strconv.Itoa(p.number), string(first.Code), verb.Hurts[first.Impact], verb.Heals[first.Heal], p.subject()}
		if wide {
			row = append(row, p.volume())
		}
		cells = append(cells, row)
	}
	if v.Width > 0 && v.Width < narrowTable {
		return v.narrow(places, cells)
	}
	widths := v.widths(cells)
	var b strings.Builder
	for i, row := range cells {
		if i > 0 {
			b.WriteString(v.line(row, widths, verb.Colours[places[i-1].faults[0].Impact]))
			b.WriteString(v.Wrap(strings.Repeat(" ", widths[0]+4), places[i-1].reason(!wide), widths[0]+4))
			continue
		}
		b.WriteString(v.Paint(terminal.Dim, strings.TrimSuffix(v.line(row, widths, terminal.Plain), "\n")) + "\n")
	}
	return b.String()
}

// narrow is the table where a row does not fit on a line.
func (v scanView) narrow(places []faultPlace, cells [][]string) string {
	var b strings.Builder
	for i, p := range places {
		row := cells[i+1]
		b.WriteString(v.Cut(row[0]+" "+row[1]+", "+row[2]+", "+row[3], v.Width) + "\n")
		b.WriteString("  " + v.Cut(row[4], v.Width-2) + "\n")
		b.WriteString(v.Wrap("  ", p.reason(true), 2))
	}
	return b.String()
}

// widths gives the last columns what the others leave: to the volume a third of it at most, if the subject needs the rest.
func (v scanView) widths(cells [][]string) []int {
	widths := make([]int, len(cells[0]))
	for _, row := range cells {
		for i, cell := range row {
			widths[i] = max(widths[i], terminal.Columns(cell))
		}
	}
	if v.Width == 0 {
		return widths
	}
	rest := v.Width
	for i := range widths {
		if i < 4 {
			rest -= widths[i] + 2
		}
	}
	if len(widths) > 5 {
		rest -= 2
		if widths[4]+widths[5] > rest {
			widths[5] = min(widths[5], max(rest/3, rest-widths[4]))
		}
		rest -= widths[5]
	}
	widths[4] = min(widths[4], rest)
	return widths
}

func (v scanView) line(row []string, widths []int, hurt terminal.Colour) string {
	var b strings.Builder
	for i, cell := range row {
		cell = terminal.Pad(v.Cut(cell, widths[i]), widths[i])
		if i == 2 {
			cell = v.Paint(hurt, cell)
		}
		b.WriteString(cell + "  ")
	}
	return strings.TrimRight(b.String(), " ") + "\n"
}

// subject is what is hurt.
func (p faultPlace) subject() string {
	first := p.faults[0]
	if first.Impact == fault.ImpactDetach {
		devices := p.each((*scanFault).device)
		if len(devices) != 1 {
			return fmt.Sprintf("%d devices", len(devices))
		}
		text := devices[0]
		if number := first.Mount.Device; number != "" && number != text {
			text += " (" + number + ")"
		}
		return printable.Quoted(text)
	}
	pods := p.pods()
	owners := p.each((*scanFault).whose)
	spaces := p.each(func(f *scanFault) string { return f.Pod.Namespace })
	switch {
	case len(pods) == 0:
		return ""
	case len(pods) == 1:
		return printable.Quoted(pods[0])
	case len(owners) == 1 && len(spaces) == 1:
		return printable.Quoted(spaces[0]+"/"+stem(first.Pod.Name)) + fmt.Sprintf(" ×%d", len(pods))
	case len(spaces) == 1:
		return printable.Quoted(spaces[0]) + fmt.Sprintf(": %d pods", len(pods))
	case len(spaces) > 1:
		return fmt.Sprintf("%d pods in %d namespaces", len(pods), len(spaces))
	}
	return fmt.Sprintf("%d pods", len(pods))
}

// volume is the volume, or how many there are.
func (p faultPlace) volume() string {
	switch volumes := p.each(func(f *scanFault) string { return f.Volume }); len(volumes) {
	case 0:
		return ""
	case 1:
		return printable.Quoted(volumes[0])
	default:
		return fmt.Sprintf("%d volumes", len(volumes))
	}
}

// reason is one sentence: the containers, the volume if it has no column, and what is wrong.
func (p faultPlace) reason(volume bool) string {
	const maxContainers = 3
	var who []string
	containers := p.each(func(f *scanFault) string { return f.Container })
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
	if at := p.volume(); volume && at != "" {
		if text != "" {
			text += " on "
		}
		text += at
	}
	if text != "" {
		text += ": "
	}
	return text + printable.Quoted(p.faults[0].Summary)
}
