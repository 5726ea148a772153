// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// scanView writes a report for people.
type scanView struct {
	terminal.Screen
	report  *scanReport
	program programName
	verbose bool // with the evidence of each fault
	// flags are those with which other verbs look at the same, with a space before each. piped is whether they cannot,
	// since the pods came by standard input.
	flags string
	piped bool
	from  string // the bundle whose node it is; empty: this node
}

// maxGaps bounds how many lines report places that were not judged, unless all are to be shown.
const maxGaps = 5

// wideTable is the width from which on the volume has a column.
const wideTable = 100

// reportText is the whole report. Its table has a row for each place and the reason below it.
func (v scanView) reportText() string {
	var text strings.Builder
	places := placesInOrder(v.report.Faults)
	mark, colour, verdict := v.verdict()
	text.WriteString(v.Marked("", mark, colour, verdict) + strings.Join(v.report.Verdict.hurtLines(v.Screen), ""))
	if len(places) > 0 {
		rows := []render.Row{{Cells: []string{"#", "FAULT", "HURTS", "HEAL", "POD OR DEVICE"}}}
		wide := v.Width == 0 || v.Width >= wideTable
		if wide {
			rows[0].Cells = append(rows[0].Cells, "VOLUME")
		}
		for _, p := range places {
			first := p.faults[0]
			cells := []string{strconv.Itoa(p.number), string(first.Code), verb.Hurts[first.Impact], verb.Heals[first.Heal], p.subjectText()}
			if wide {
				cells = append(cells, p.volumeText())
			}
			rows = append(rows, render.Row{Cells: cells, Colour: verb.Colours[first.Impact], Below: p.reasonText(!wide)})
		}
		text.WriteString("\n" + render.Table{Rows: rows, Painted: 2, Subject: 4, Numbered: true}.Text(v.Screen))
	}
	if v.verbose {
		for i := range v.report.Faults {
			text.WriteString("\n" + v.evidenceText(&v.report.Faults[i]))
		}
	}
	if commands := v.nextCommands(places); len(commands) > 0 {
		text.WriteString("\nNext:\n" + v.commandLines(commands))
	}
	if v.report.Looked.Kubelet.Down && v.from != "" {
		text.WriteString("\nOn node " + printable.Quoted(v.report.Node) + ":\n" + v.commandLines([]fault.Command{kubeletCommand}))
	}
	text.WriteString(v.gapsText())
	return v.Text(text.String())
}

// hurtLines name the pods that are hurt, one line for each kind of harm.
func (s scanVerdict) hurtLines(screen terminal.Screen) []string {
	return slices.DeleteFunc([]string{
		nameLine(screen, "hurt now:      ", s.PodsNow), nameLine(screen, "cannot go:     ", s.PodsTerminating), nameLine(screen, "at next start: ", s.PodsNextStart),
	}, func(line string) bool { return line == "" })
}

// verdict is one sentence, with its mark.
func (v scanView) verdict() (mark string, colour terminal.Colour, text string) {
	mark, colour = "✗", terminal.Red
	sum, gaps := v.report.Verdict, len(v.report.Looked.Gaps.NotLookedAt) > 0
	unknown := gaps || sum.NotJudged > 0
	var found []string
	switch {
	case v.report.hasFaults():
	case unknown:
		mark, colour = "!", terminal.Yellow
	default:
		mark, colour = "✓", terminal.Green
	}
	switch {
	case v.report.Looked.Kubelet.Down && sum.Faults == 0:
		found = append(found, "no kubelet is running, and nothing else is broken")
	case v.report.Looked.Kubelet.Down:
		found = append(found, "no kubelet is running")
		fallthrough
	case sum.Faults > 0:
		text := verb.Count(sum.Faults, "fault")
		if sum.Places > 1 {
			text += " in " + verb.Count(sum.Places, "place")
		}
		found = append(found, text)
	default:
		found = append(found, "nothing broken")
	}
	text = strings.Join(found, ", ")
	switch {
	case sum.NotJudged > 0 && sum.Faults == 0:
		text += " in what could be judged"
	case gaps:
		text += " in what was looked at"
	case v.report.lacksSpecs() && !v.report.hasFaults():
		text += " that shows without the specs of pods"
	}
	text += "."
	if sum.NotJudged > 0 {
		text += fmt.Sprintf(" %s not be judged.", verb.Plural(sum.NotJudged, "place could", "places could"))
	}
	for _, part := range sum.harmParts() {
		text += " " + part + "."
	}
	if !v.report.hasFaults() {
		text += " " + v.report.Looked.coverageText()
	}
	return mark, colour, v.report.Node + ": " + text
}

// harmParts count the pods, devices and directories that are hurt.
func (s scanVerdict) harmParts() (list []string) {
	add := func(n int, one, many string) {
		if n > 0 {
			list = append(list, verb.Plural(n, one, many))
		}
	}
	add(len(s.PodsNow), "pod is hurt now", "pods are hurt now")
	add(len(s.PodsTerminating), "deleted pod cannot go", "deleted pods cannot go")
	add(len(s.PodsNextStart), "pod fails at its next start", "pods fail at their next start")
	add(len(s.Devices), "device cannot be detached", "devices cannot be detached")
	add(s.Directories, "directory of a pod is left", "directories of pods are left")
	if s.Faults > 0 {
		safe := fmt.Sprintf("%d of %d can be healed safely", s.Safe, s.Places)
		if s.Places == 1 {
			safe = "It can be healed safely"
			if s.Safe == 0 {
				safe = "It does not heal by itself"
			}
		}
		list = append(list, safe)
	}
	return list
}

// nameLine lists pods on one line of the screen, as many as fit.
func nameLine(screen terminal.Screen, label string, pods []string) string {
	if len(pods) == 0 {
		return ""
	}
	const maxNames, narrowNames = 20, 60
	if screen.Width > 0 && screen.Width < narrowNames {
		pods = slices.Clone(pods)
		for i := range pods {
			pods[i] = screen.Cut(printable.Quoted(pods[i]), screen.Width-6)
		}
		list := strings.Join(pods[:min(len(pods), maxNames)], ", ")
		if more := len(pods) - maxNames; more > 0 {
			list += fmt.Sprintf(" and %d more", more)
		}
		return screen.Wrap("  ", strings.TrimSpace(label)+" "+list, 4)
	}
	line, shown := "  "+label, 0
	for i, pod := range pods {
		word := screen.Cut(printable.Quoted(pod), max(0, screen.Width-30)) // beside the label
		if i+1 < len(pods) {
			word += ", "
		}
		more := 0
		if i+1 < len(pods) {
			more = len(fmt.Sprintf("and %d more", len(pods)))
		}
		if i == maxNames || i > 0 && screen.Width > 0 && terminal.Columns(line+word)+more > screen.Width {
			break
		}
		line, shown = line+word, shown+1
	}
	if shown < len(pods) {
		line += fmt.Sprintf("and %d more", len(pods)-shown)
	}
	return strings.TrimRight(line, " ") + "\n"
}

// coverageText is the coverage in sentences. It counts the kubelet's mounts by the reason for which they are there; the counts add up.
func (c scanCoverage) coverageText() string {
	specs := "no specs"
	if c.PodSpecs.Given {
		specs = fmt.Sprintf("specs of %d", c.PodSpecs.Pods)
	}
	containers := ""
	if c.Counts.Containers > 0 {
		containers = fmt.Sprintf(" The mounts in %s were compared with the container runtime's records.", verb.Count(c.Counts.Containers, "container"))
	}
	text := fmt.Sprintf("Looked at %s (%s), %s, %s and %s in %s.", verb.Count(c.Counts.Pods, "pod"), specs, verb.Count(c.Counts.Binds, "subPath bind"),
		verb.Count(c.Counts.Volumes, "volume"), verb.Count(c.Counts.Mounts, "mount"), render.Milliseconds(c.Milliseconds)) + containers
	classes := c.Classes
	if classes == nil {
		return text
	}
	text += fmt.Sprintf(" %s below the kubelet's root: %d wanted", verb.Count(classes.Mounts, "mount"), classes.Wanted)
	for _, part := range []struct {
		n    int
		name string
	}{{classes.Inside, "inside volumes"}, {classes.Drivers, "drivers' own"}, {classes.Kubelet, "the kubelet's own"}, {classes.Hidden, "hidden"}} {
		if part.n > 0 {
			text += fmt.Sprintf(", %d %s", part.n, part.name)
		}
	}
	return text + fmt.Sprintf(", %d left over, %d unknown.", classes.LeftOver, classes.Unknown)
}

// kubeletCommand shows why no kubelet runs.
var kubeletCommand = fault.Command{Purpose: "why it is not running", Line: "systemctl status --no-pager kubelet"}

// nextCommands are the commands to type where this program runs.
func (v scanView) nextCommands(places []faultPlace) (commands []fault.Command) {
	if v.report.Looked.Kubelet.Down && v.from == "" {
		commands = append(commands, kubeletCommand)
	}
	if len(places) > 0 {
		worst := places[0].faults[0]
		switch {
		case v.from == "":
			commands = append(commands, fault.Command{Purpose: "evidence, plan and commands of number 1", Line: "kubediag show 1"})
			line := "kubediag recover" + v.flags
			if v.piped { // standard input can be read once
				line = getPods + v.program.commandLine(line+" --pods=pods.json")
			}
			var left []faultPlace // that it cannot repair
			for _, p := range places {
				f := p.faults[0]
				if entry := fault.Known().Entry(f.Code); f.Details.Repair == "" || entry.Operation == "" || f.Pod.Name == "" && entry.Scope.OfPod() {
					left = append(left, p)
					continue
				}
				line += " " + strconv.Itoa(p.number)
			}
			if len(left) < len(places) {
				commands = append(commands, fault.Command{Purpose: "asks, then repairs without loss", Line: line})
			}
			commands = append(commands, v.repairCommands(left)...)
		case v.from != "-": // standard input is read once
			commands = append(commands, fault.Command{Purpose: "evidence and plan of number 1", Line: "kubediag show" + v.flags + " 1"})
		}
		commands = append(commands, fault.Command{Purpose: "cause, proof, repair by hand, prevention", Line: "kubediag explain " + string(worst.Code)})
	}
	return commands
}

// repairCommands is the first command that repairs something and loses nothing, if it fits.
func (v scanView) repairCommands(places []faultPlace) []fault.Command {
	for _, p := range places {
		for _, c := range p.faults[0].Commands {
			if c.Effect == fault.EffectRepair && v.fitsHalfLine(c.Line) {
				c.Purpose = fmt.Sprintf("number %d: %s", p.number, c.Purpose)
				return []fault.Command{c}
			}
		}
	}
	return nil
}

// fitsHalfLine reports whether a command takes no more than half of a line.
func (v scanView) fitsHalfLine(line string) bool {
	return v.Width == 0 || terminal.Columns(line) <= v.Width/2
}

// commandLines are lines to paste.
func (v scanView) commandLines(list []fault.Command) string {
	hints := make([]terminal.Hint, len(list))
	for i, c := range list {
		hints[i] = terminal.Hint{Line: v.program.commandLine(c.Line), Purpose: c.Purpose}
	}
	return v.Hints(hints, func(line string) bool { return v.fitsHalfLine(line) && len(line) < 60 })
}

// gapsText is the coverage, and the lines about gaps.
func (v scanView) gapsText() string {
	var b strings.Builder
	if v.report.hasFaults() {
		b.WriteString("\n" + v.Wrap("", v.report.Looked.coverageText(), 0))
	}
	for _, line := range v.gapLines() {
		b.WriteString(v.Marked("", "!", terminal.Yellow, line))
	}
	if v.verbose {
		b.WriteString(v.Wrap("", locationText(v.report.Looked.Kubelet.PID, v.report.Looked.Kubelet.Root, v.report.Looked.Kubelet.MountNamespace)+".", 0))
	}
	return b.String()
}

// lacksSpecs reports whether there are pods, and no specs of them were given: then their mounts of the host are unknown.
func (r *scanReport) lacksSpecs() bool { return !r.Looked.PodSpecs.Given && r.Looked.Counts.Pods > 0 }

// locationText says which kubelet's node it is.
func locationText(pid int, root string, mountNamespace uint64) string {
	who := fmt.Sprintf("kubelet %d", pid)
	if pid == 0 {
		who = "no kubelet process was used"
	}
	return fmt.Sprintf("%s, root %s, mount namespace %d", who, printable.Quoted(strconv.Quote(root)), mountNamespace)
}

// maxBriefLength is how many bytes the line of --brief has at most, as node-problem-detector shows no more of it.
const maxBriefLength = 80

// briefLine is the report on one line of ASCII.
func (r *scanReport) briefLine() string {
	l := r.Looked
	text := ""
	switch {
	case len(r.Faults) > 0:
		text = verb.Count(len(r.Faults), "fault")
	case len(l.Unproven) > 0:
		text = fmt.Sprintf("no fault seen, but %s not be judged", verb.Plural(len(l.Unproven), "place could", "places could"))
	case len(l.Gaps.NotLookedAt) > 0:
		text = "no fault seen, but not everything was looked at"
	case !l.Kubelet.Down:
		seen := "no fault"
		if r.lacksSpecs() {
			seen = "no fault seen without specs"
		}
		text = fmt.Sprintf("%s: %s, %s, %s", seen, verb.Count(l.Counts.Pods, "pod"), verb.Count(l.Counts.Binds, "subPath bind"), verb.Count(l.Counts.Volumes, "volume"))
	}
	if l.Kubelet.Down {
		text = strings.TrimSuffix("no kubelet runs; "+text, "; ")
	}
	ascii := terminal.Screen{ASCII: true}
	places := placesInOrder(r.Faults)
	for i, p := range places {
		name := ascii.Text(fmt.Sprintf("%s %s", p.faults[0].Code, printable.Quoted(p.subjectText())))
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		rest := ""
		if left := len(places) - i - 1; left > 0 {
			rest = fmt.Sprintf("; +%d places", left)
		}
		room := maxBriefLength - len(text) - len(sep) - len(rest)
		if i == 0 {
			name = ascii.Cut(name, room)
		}
		if len(name) > room {
			return text + fmt.Sprintf("; +%d places", len(places)-i) + "\n"
		}
		text += sep + name
	}
	return text + "\n"
}
