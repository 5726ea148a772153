// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// nothingToRepair is said if there is nothing to repair.
func (r *recovery) nothingToRepair() string {
	view := r.view
	mark, colour, text := "✓", terminal.Green, "nothing to repair."
	switch {
	case view.report.Looked.Kubelet.Down:
		mark, colour, text = "!", terminal.Yellow, "no kubelet is running. Nothing else is broken, and there is nothing to repair."
	case view.report.hasUnknowns():
		mark, colour, text = "!", terminal.Yellow, "nothing to repair in what could be looked at and judged."
	}
	if !view.report.hasFaults() { // else it is said below
		text += " " + view.report.Looked.coverageText()
	}
	return view.Marked("", mark, colour, view.report.Node+": "+text) + view.gapsText()
}

func (r *recovery) goneLines() string {
	var b strings.Builder
	for _, same := range verb.Group(r.gone, func(f *scanFault) string { return strconv.Itoa(f.Place) }) {
		texts := verb.Distinct(same, (*scanFault).lineText)
		if len(same) > maxFaultLines {
			texts = []string{faultPlace{same[0].Place, same}.lineText()}
		}
		for _, text := range texts {
			b.WriteString(r.view.Marked("", "✓", terminal.Green, text+": gone since the last scan."))
		}
	}
	return b.String()
}

// lineText is a fault in one line.
func (f *scanFault) lineText() string {
	text := fmt.Sprintf("%d. %s", f.Place, f.Code)
	if f.ofDevice() {
		return printable.Quoted(text + " " + f.deviceText() + " at " + f.Mount.Point)
	}
	if f.Pod != (scanPod{}) {
		text += " " + f.Pod.shortName()
	}
	if f.Container != "" {
		text += ", container " + f.Container
	}
	if f.Volume != "" {
		text += ", volume " + f.Volume
	}
	return printable.Quoted(text)
}

// planText lists the planned and the refused repairs. Plans for one row of the table are one paragraph: with the evidence of each fault,
// a line for each, or a line for each row with the plans for its faults.
func (r *recovery) planText(verbose bool) string {
	var text strings.Builder
	text.WriteString(r.goneLines())
	for _, row := range r.plannedRows() {
		faults, actions := row.sum()
		switch {
		case verbose:
			for _, f := range faults {
				text.WriteString(r.view.evidenceText(f))
			}
		case len(faults) <= maxFaultLines:
			for _, f := range faults {
				text.WriteString(r.view.Wrap("", f.lineText(), 3))
			}
		default:
			for _, same := range verb.Group(faults, func(f *scanFault) string { return strconv.Itoa(f.Place) }) {
				text.WriteString(r.view.Wrap("", faultPlace{same[0].Place, same}.lineText(), 3))
				plans := verb.Distinct(same, func(f *scanFault) string { return f.Plan })
				text.WriteString(r.view.Wrap("   each: ", printable.Quoted(render.Few(plans, "; or ")), 11))
			}
		}
		text.WriteString(render.PlanText(r.view.Screen, actions, verbose))
	}
	var left []*repairTarget
	for _, t := range r.targets {
		if t.progress != progressPlanned {
			left = append(left, t)
		}
	}
	text.WriteString(r.resultLines(left, verbose))
	return text.String()
}

// isFolded reports whether planText leaves out details.
func (r *recovery) isFolded() bool {
	return slices.ContainsFunc(r.plannedRows(), func(row targetRow) bool {
		faults, actions := row.sum()
		return len(faults) > maxFaultLines || render.Folded(actions)
	})
}

// targetRow are targets whose faults are in the same rows of the table.
type targetRow []*repairTarget

// plannedRows are the targets that have a plan.
func (r *recovery) plannedRows() (rows []targetRow) {
	var planned []*repairTarget
	for _, t := range r.targets {
		if t.progress == progressPlanned && t.plan != nil {
			planned = append(planned, t)
		}
	}
	for _, row := range verb.Group(planned, (*repairTarget).rowKey) {
		rows = append(rows, row)
	}
	return rows
}

// rowKey are the numbers of the rows that the faults are in.
func (t *repairTarget) rowKey() string {
	return strings.Join(verb.Distinct(t.faults, func(f *scanFault) string { return strconv.Itoa(f.Place) }), " ")
}

// sum are all faults and all actions of the targets.
func (row targetRow) sum() (faults []*scanFault, actions []render.Action) {
	for _, t := range row {
		faults = append(faults, t.faults...)
		replaces := slices.ContainsFunc(t.faults, func(f *scanFault) bool { return f.Details.Repair == fault.Replace })
		actions = append(actions, render.Actions(t.plan, replaces)...)
	}
	return faults, actions
}

// maxFaultLines is how many faults of a row have a line each.
const maxFaultLines = 3

// lineText is a row in one line.
func (p faultPlace) lineText() string {
	text := fmt.Sprintf("%d. %s %s", p.number, p.faults[0].Code, p.subjectText())
	if at := p.volumeText(); at != "" {
		text += ", volume " + at
	}
	return text + ": " + verb.Count(len(p.faults), "fault")
}

// resultMarks of results.
var resultMarks = map[repairProgress]struct {
	mark   string
	colour terminal.Colour
	word   string
}{
	progressHealed:    {"✓", terminal.Green, "healed: "},
	progressGone:      {"✓", terminal.Green, "gone: "},
	progressRefused:   {"!", terminal.Yellow, "refused because "},
	progressFailed:    {"✗", terminal.Red, "failed because "},
	progressRepaired:  {"!", terminal.Yellow, "repaired, but not proven"},
	progressPlanned:   {"!", terminal.Yellow, "not tried"},
	progressNotJudged: {"!", terminal.Yellow, "not judged: "},
}

// resultLines is one line for each fault; of many that are in the same rows and ended in the same way, one with a count.
func (r *recovery) resultLines(targets []*repairTarget, verbose bool) string {
	var b strings.Builder
	end := func(t *repairTarget) string { return t.rowKey() + " " + string(t.progress) }
	for _, row := range verb.Group(targets, end) {
		faults, reasons := []*scanFault{}, verb.Distinct(row, func(t *repairTarget) string { return t.reason })
		for _, t := range row {
			faults = append(faults, t.faults...)
		}
		if !verbose && len(faults) > maxFaultLines {
			for _, same := range verb.Group(faults, func(f *scanFault) string { return strconv.Itoa(f.Place) }) {
				b.WriteString(r.resultLine(row[0], same[0].Place, faultPlace{same[0].Place, same}.lineText(), render.Few(reasons, "; or ")))
			}
			continue
		}
		for _, t := range row {
			for _, f := range t.faults {
				b.WriteString(r.resultLine(t, f.Place, f.lineText(), t.reason))
			}
		}
	}
	return b.String()
}

// resultLine says how targets such as t have ended.
func (r *recovery) resultLine(t *repairTarget, place int, name, reason string) string {
	m := resultMarks[t.progress]
	text := name + ": " + m.word
	if t.progress == progressRepaired && reason != "" {
		text += ": "
	}
	text += printable.Quoted(reason)
	switch {
	case (t.needsPod || t.progress == progressNotJudged && !r.view.report.Looked.PodSpecs.Given) && r.again != nil:
		text = strings.TrimSuffix(text, ".") + ". Next: " + r.again(place)
	case t.progress == progressRefused || t.progress == progressFailed || t.progress == progressNotJudged:
		text = strings.TrimSuffix(text, ".") + ". Next: " + r.view.program.commandLine(fmt.Sprintf("kubediag show %d", place))
	}
	return r.view.Marked("", m.mark, m.colour, text)
}

// resultText is the result of each plan, and the sum.
func (r *recovery) resultText() string {
	var planned []*repairTarget
	for _, t := range r.targets {
		if t.plan != nil && t.plan.Status.Plan != nil {
			planned = append(planned, t)
		}
	}
	good, all := r.countHealed()
	return r.resultLines(planned, r.view.verbose) + r.view.Wrap("", fmt.Sprintf("%d of %s healed.", good, verb.Count(all, "fault")), 0)
}

// confirmPlan asks whether the plan is to be carried out. Without a terminal it is refused.
func (r *recovery) confirmPlan(cmd *cobra.Command, o changeOptions) error {
	n := r.countAt(progressPlanned)
	if n == 0 || o.yes || o.dryRun {
		return nil
	}
	faults := 0
	for _, t := range r.targets {
		if t.progress == progressPlanned {
			faults += len(t.faults)
		}
	}
	var details func() string
	if r.isFolded() && !o.verbose {
		details = func() string { return r.view.Text(r.planText(true)) }
	}
	return o.confirmOnTerminal(cmd, "Repair "+verb.Count(faults, "fault")+" as planned?", r.next, details)
}

// confirmOnTerminal asks a question on the terminal. line is the command to type if no question can be asked. details
// returns the plan in full; nil: the plan was printed in full.
func (o changeOptions) confirmOnTerminal(cmd *cobra.Command, question, line string, details func() string) error {
	if *o.out == verb.JSON {
		return fmt.Errorf("%w: nothing was changed: --output=json asks nothing. To carry out the plan, type: %s", verb.ErrRefused, line)
	}
	yes, asked, err := verb.Ask(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), question, details)
	switch {
	case err != nil:
		return err
	case !asked:
		return fmt.Errorf("%w: nothing was changed: there is no terminal to ask on. To carry out the plan, type: %s", verb.ErrRefused, line)
	case !yes:
		return fmt.Errorf("%w: nothing was changed", verb.ErrRefused)
	}
	return nil
}

// givenFlags are the flags that the user has set, without those that decide about the question.
func givenFlags(cmd *cobra.Command) (list []string) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "yes", "dry-run", "verbose":
		default:
			list = append(list, fault.Quote("--"+f.Name+"="+strings.Trim(f.Value.String(), "[]")))
		}
	})
	return list
}
