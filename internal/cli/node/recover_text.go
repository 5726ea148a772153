// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// nothingToRepair is said if there is nothing to repair.
func (r *recovery) nothingToRepair() string {
	view := r.view
	mark, colour, text := "✓", terminal.Green, "nothing to repair."
	switch {
	case view.Looked.KubeletDown:
		mark, colour, text = "!", terminal.Yellow, "no kubelet is running. Nothing else is broken, and there is nothing to repair."
	case view.hasUnknowns():
		mark, colour, text = "!", terminal.Yellow, "nothing to repair in what could be looked at and judged."
	}
	if !view.hasFaults() { // else it is said below
		text += " " + view.coverageText()
	}
	return view.Marked("", mark, colour, view.Node+": "+text) + view.gapsText()
}

// nothingError is how the verb ends with nothing to repair.
func (r *scanReport) nothingError() error {
	if r.hasUnknowns() {
		return r.finalError()
	}
	return nil
}

func (r *recovery) goneLines() string {
	var b strings.Builder
	for _, f := range r.gone {
		b.WriteString(r.view.Marked("", "✓", terminal.Green, f.lineText()+": gone since the last scan."))
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

// planText is what would be done, and what is refused.
func (r *recovery) planText() string {
	var text strings.Builder
	view := r.view
	text.WriteString(r.goneLines())
	for _, target := range r.targets {
		if target.progress == progressPlanned && target.plan != nil {
			for _, f := range target.faults {
				if view.verbose {
					text.WriteString(view.evidenceText(f))
				} else {
					text.WriteString(view.Wrap("", f.lineText(), 3))
				}
			}
			text.WriteString(view.actionLines(target.plan))
		}
	}
	for _, t := range r.targets {
		if t.progress != progressPlanned {
			text.WriteString(r.resultLines(t))
		}
	}
	return text.String()
}

// actionLines are those of the plan of a Diagnosis.
func (v scanView) actionLines(d *v1.Diagnosis) string {
	var text strings.Builder
	for _, run := range d.Status.Operations {
		for _, a := range run.Actions {
			target := a.Target
			if m := a.Mount; m != nil && m.MountInfoID != 0 {
				target += fmt.Sprintf(" (mount %d of mount namespace %d)", m.MountInfoID, m.Namespace)
			}
			text.WriteString(v.Wrap("   would ", printable.Quoted(a.Kind+" "+target), 11))
			text.WriteString(v.Wrap("     safe: ", printable.Quoted(a.Safety), 11))
			text.WriteString(v.Wrap("     lost: ", printable.Quoted(a.Loss), 11))
		}
	}
	return text.String()
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

// resultLines is one line for each fault.
func (r *recovery) resultLines(t *repairTarget) string {
	var b strings.Builder
	m := resultMarks[t.progress]
	for _, f := range t.faults {
		text := f.lineText() + ": " + m.word
		if t.progress == progressRepaired && t.reason != "" {
			text += ": "
		}
		text += printable.Quoted(t.reason)
		switch {
		case t.wantsSpecs(r.view.Looked) && r.again != nil:
			text = strings.TrimSuffix(text, ".") + ". Next: " + r.again(f.Place)
		case t.progress == progressRefused || t.progress == progressFailed || t.progress == progressNotJudged:
			text = strings.TrimSuffix(text, ".") + ". Next: " + r.view.program.commandLine(fmt.Sprintf("kubediag show %d", f.Place))
		}
		b.WriteString(r.view.Marked("", m.mark, m.colour, text))
	}
	return b.String()
}

// wantsSpecs reports whether the specs of pods would bring a target on.
func (t *repairTarget) wantsSpecs(l scanCoverage) bool {
	return t.needsPod || t.progress == progressNotJudged && !l.PodSpecs.Given
}

// resultText is what came of what was planned, and the sum.
func (r *recovery) resultText() string {
	var b strings.Builder
	for _, t := range r.targets {
		if t.plan != nil && t.plan.Status.Plan != nil {
			b.WriteString(r.resultLines(t))
		}
	}
	good, all := r.countHealed()
	b.WriteString(r.view.Wrap("", fmt.Sprintf("%d of %s healed.", good, verb.Count(all, "fault")), 0))
	return b.String()
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
	return o.confirmOnTerminal(cmd, "Repair "+verb.Count(faults, "fault")+" as planned?", r.next)
}

// confirmOnTerminal asks a question on the terminal. line is what to type if no question can be asked.
func (o changeOptions) confirmOnTerminal(cmd *cobra.Command, question, line string) error {
	if *o.out == jsonFormat {
		return fmt.Errorf("%w: nothing was changed: --output=json asks nothing. To carry out the plan, type: %s", verb.ErrRefused, line)
	}
	yes, asked, err := verb.Ask(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), question)
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

// givenFlags are the flags that the user has set, without those that say whether it is asked.
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
