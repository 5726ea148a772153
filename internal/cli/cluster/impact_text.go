// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"strings"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// Bounds of the screen of impact: rows of the table, and lines about nodes that were not looked at.
const (
	maxImpactRows = 30
	maxImpactGaps = 5
)

// impactView writes an answer for people.
type impactView struct {
	screen   terminal.Screen
	api      *client
	question *impactQuestion
	report   *impactReport
}

// wayBackTexts are the words of the column RETURNS.
var wayBackTexts = map[fault.Return]string{
	fault.ReturnNotLost: "-", fault.ReturnByItself: "by itself", fault.ReturnRepair: "repair", fault.ReturnNewPod: "new pod",
}

func (v impactView) text() string {
	text, gaps := v.verdictText(), v.report.Unknown
	for _, gap := range gaps[:min(len(gaps), maxImpactGaps)] {
		text += v.screen.Marked("", "!", terminal.Yellow, "node "+gap.Node+": "+gap.Why)
	}
	if more := len(gaps) - maxImpactGaps; more > 0 {
		text += fmt.Sprintf("  and %d more: -o json\n", more)
	}
	lines, table := terminal.ScreenLines-strings.Count(text, "\n")-1, ""
	for rows := min(len(v.report.Volumes), maxImpactRows); rows > 0; rows-- { // as many as fit: a row may have a reason below it
		if table = v.tableText(rows); strings.Count(table, "\n") <= lines {
			break
		}
	}
	if table != "" {
		text += "\n" + table
	}
	return v.screen.Text(text)
}

// count counts the volumes of which something holds, and their pods and nodes.
func (v impactView) count(holds func(impactVolume) bool) (volumes, pods, nodes int) {
	seenPods, seenNodes := map[fault.Pod]bool{}, map[string]bool{}
	for _, one := range v.report.Volumes {
		if holds(one) {
			volumes++
			seenPods[one.Pod], seenNodes[one.Node] = true, true
		}
	}
	return volumes, len(seenPods), len(seenNodes)
}

// verdictText is the answer in a few lines.
func (v impactView) verdictText() (text string) {
	line := func(mark string, colour terminal.Colour, format string, args ...any) {
		text += v.screen.Marked("", mark, colour, fmt.Sprintf(format, args...))
	}
	volumes, pods, nodes := v.count(func(one impactVolume) bool { return one.Loses == loses })
	if volumes > 0 {
		line("✗", terminal.Red, "%s on %s when %s.", verb.Plural(pods, "pod loses "+verb.Count(volumes, "volume"), "pods lose "+verb.Count(volumes, "volume")),
			verb.Count(nodes, "node"), v.question.event)
		for _, back := range []struct {
			way  fault.Return
			text string
		}{
			{fault.ReturnByItself, "by itself, once the driver has mounted the volume again"},
			{fault.ReturnRepair, "by a repair of kubediag without a restart, once the driver has staged it again"},
			{fault.ReturnNewPod, "only with a new pod"},
		} {
			if n, _, _ := v.count(func(one impactVolume) bool { return one.Loses == loses && one.Returns == back.way }); n > 0 {
				line("-", terminal.Dim, "Comes back %s: %s.", back.text, verb.Count(n, "volume"))
			}
		}
	}
	if n, _, _ := v.count(func(one impactVolume) bool { return one.Loses == mayLose }); n > 0 {
		line("!", terminal.Yellow, "It is not known which daemon serves %s.", verb.Count(n, "volume"))
	}
	if n, _, _ := v.count(func(one impactVolume) bool { return one.UnmountRefusal != "" }); n > 0 {
		line("!", terminal.Yellow, "%s cannot be unmounted now.", verb.Count(n, "volume"))
	}
	switch {
	case text == "" && len(v.report.Unknown) > 0:
		line("!", terminal.Yellow, "No pod is known to lose a volume when %s, but kubediag could not look at everything.", v.question.event)
	case text == "":
		line("✓", terminal.Green, "No pod loses a volume when %s: %s answered.", v.question.event, verb.Plural(len(v.report.Nodes), "node has", "nodes have"))
	}
	return text
}

// tableText has a row for each of the first volumes.
func (v impactView) tableText(rows int) string {
	table := render.Table{Rows: []render.Row{{Cells: []string{"LOSES", "RETURNS", "POD", "VOLUME", "DAEMON", "NODE"}}}, Painted: 0, Subject: 2}
	all := v.report.Volumes
	for _, one := range all[:rows] {
		row := render.Row{Colour: map[impactAnswer]terminal.Colour{loses: terminal.Red, mayLose: terminal.Yellow, losesNot: terminal.Dim}[one.Loses]}
		var reasons []string
		if one.DaemonUnknown != "" {
			reasons = append(reasons, one.DaemonUnknown)
		}
		if one.UnmountRefusal != "" {
			reasons = append(reasons, "cannot be unmounted: "+one.UnmountRefusal)
		}
		row.Below = strings.Join(reasons, "; ")
		pod := one.Pod.Namespace + "/" + one.Pod.Name
		if one.Pod.Name == "" {
			pod = one.Pod.UID
		}
		for _, cell := range []string{strings.ToLower(string(one.Loses)), wayBackTexts[one.Returns], pod, cmp.Or(one.SpecVolume, one.Volume), one.daemonText(), one.Node} {
			row.Cells = append(row.Cells, printable.Quoted(cell))
		}
		table.Rows = append(table.Rows, row)
	}
	text := table.Text(v.screen)
	if more := len(all) - rows; more > 0 {
		text += fmt.Sprintf("  and %d more: -o json\n", more)
	}
	return text
}

// daemonText names the first daemon, and its pod.
func (v impactVolume) daemonText() string {
	switch {
	case v.ServedBy == fault.ServedByKernel:
		return "-"
	case len(v.Daemons) == 0:
		return "not known"
	}
	first, text := v.Daemons[0], ""
	if first.PID != 0 {
		text = fmt.Sprintf("%s %d", first.Command, first.PID)
	}
	switch {
	case first.PodUnknown != "":
		text += ", pod not known"
	case first.Pod.Name != "" && text == "":
		text = "driver " + first.Pod.Namespace + "/" + first.Pod.Name
	case first.Pod.Name != "":
		text += ", " + first.Pod.Namespace + "/" + first.Pod.Name
	}
	return text
}
