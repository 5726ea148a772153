// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// Bounds of the screen of status: rows of each part, and bytes of a sentence about a policy.
const (
	maxCauses    = 6
	maxWaiting   = 2
	maxPolicies  = 3
	maxRepairs   = 3
	maxHoldBytes = 100
)

// policyTexts describe a policy that nothing holds.
var policyTexts = map[v1.RecoveryMode]string{
	v1.RecoveryAutomatic: "repairs without loss", v1.RecoveryApprove: "repairs after approval", v1.RecoveryPlan: "only plans",
	v1.RecoveryObserve: "only reports", v1.RecoveryOff: "does not even report",
}

// statusView writes the report for people, on one screen.
type statusView struct {
	faultsView

	report *statusReport
}

// text is the verdict with the nodes that are not watched, a row for each cause, the plans that wait, the policies and the repairs.
func (v statusView) text() string {
	rows, waiting, policies, repairs := v.report.rows, v.report.Waiting, v.report.Policies, v.report.Repairs
	mark, colour, verdict := v.verdict()
	text := v.screen.Marked("", mark, colour, verdict) + v.problemsText()
	if len(rows) > 0 {
		args := []string{"faults", "-A"}
		if v.report.Namespace != "" {
			args[1] = "--namespace=" + v.report.Namespace
		}
		text += "\n" + v.tableText(rows[:min(len(rows), maxCauses)]) + v.restText(len(rows)-maxCauses, args...)
	}
	text += "\n" + v.title(v.waitingPart())
	var approvals []terminal.Hint
	for _, w := range waiting[:min(len(waiting), maxWaiting)] {
		approvals = append(approvals, terminal.Hint{Line: w.Command, Purpose: v.waitingText(w)})
	}
	text += v.screen.Hints(approvals, nil) + v.restText(len(waiting)-maxWaiting, "get", "-A") + "\n" + v.title(v.policiesPart())
	for _, p := range policies[:min(len(policies), maxPolicies)] {
		state, mark, colour := policyTexts[p.Mode], "-", terminal.Dim
		if len(p.Holds) > 0 {
			state, mark, colour = printable.Clip(strings.Join(p.Holds, "; "), maxHoldBytes), "!", terminal.Yellow
		}
		text += v.screen.Marked("  ", mark, colour, fmt.Sprintf("%s, mode %s: %s", v.screen.Cut(p.Name, 40), p.Mode, state))
	}
	if more := len(policies) - maxPolicies; more > 0 {
		text += fmt.Sprintf("  and %d more: %s\n", more, v.api.kubectlLine("get", "rp"))
	}
	text += "\n" + v.title(v.repairsPart())
	if len(repairs) > 0 {
		table := render.Table{Rows: []render.Row{{Cells: []string{"FAULT", "REPAIRED", "FAILED", "LAST", "BY", "WORKLOAD"}}}, Painted: 2, Subject: 5}
		for _, one := range repairs[:min(len(repairs), maxRepairs)] {
			row := render.Row{Cells: []string{
				printable.Quoted(one.Code), strconv.Itoa(one.Repaired), strconv.Itoa(one.Failed), formatAge(metav1.NewTime(one.Last), v.now),
				printable.Quoted(one.Origin), printable.Quoted(one.Subject),
			}}
			if one.Failed > 0 {
				row.Colour = terminal.Red
			}
			table.Rows = append(table.Rows, row)
		}
		text += table.Text(v.screen) + v.restText(len(repairs)-maxRepairs, "get", "-A")
	}
	return v.screen.Text(text)
}

// verdict is one sentence about the faults, with its mark.
func (v statusView) verdict() (mark string, colour terminal.Colour, verdict string) {
	r, where := v.report, placeText(v.report.Namespace)
	mark, colour, verdict = "✓", terminal.Green, "No fault is known in "+where+", and every node is watched."
	switch largest := 0; {
	case len(r.Causes) > 0:
		for _, c := range r.Causes {
			largest = max(largest, c.Faults)
		}
		mark, colour, verdict = "✗", terminal.Red, verdictText(r.faults, where)+" One cause."
		if n := len(r.Causes); n > 1 {
			verdict = verdictText(r.faults, where) + fmt.Sprintf(" %d causes; the largest has %s.", n, verb.Count(largest, "fault"))
		}
	case r.Unknown["causes"] != "":
		mark, colour, verdict = "!", terminal.Yellow, "It is not known what is broken: "+r.Unknown["causes"]
	case len(r.Unwatched) > 0:
		mark, colour, verdict = "!", terminal.Yellow, "No fault is known in "+where+", but that counts only for what was looked at."
	case len(r.Unknown) > 0:
		mark, colour = "!", terminal.Yellow
	}
	return mark, colour, verdict
}

// restText is the line below a list that says how to see the rest of it.
func (v statusView) restText(more int, args ...string) string {
	if more <= 0 {
		return ""
	}
	return fmt.Sprintf("  and %d more: %s\n", more, v.api.commandLine(args...))
}

// statusPart is a part of the screen: its heading, the right that is missing for it, and its contents in a few words.
type statusPart struct{ heading, unknown, rest string }

// title begins a part of the screen. A right that is missing takes the place of the rest.
func (v statusView) title(p statusPart) string {
	if p.unknown != "" {
		return v.screen.Marked("", "!", terminal.Yellow, p.heading+": not known: "+p.unknown)
	}
	return v.screen.Wrap("", p.heading+": "+p.rest, 2)
}

func (v statusView) waitingPart() statusPart {
	p := statusPart{"Waits for you", v.report.Unknown["waiting"], "nothing"}
	if n := len(v.report.Waiting); n > 0 {
		p.rest = verb.Count(n, "plan")
	}
	return p
}

func (v statusView) policiesPart() statusPart {
	all := v.report.Policies
	p := statusPart{"Allowed now", v.report.Unknown["policies"], "no RecoveryPolicy; only the sentinel's mode counts"}
	if len(all) > 0 {
		held := len(slices.DeleteFunc(slices.Clone(all), func(p statusPolicy) bool { return len(p.Holds) == 0 }))
		p.rest = fmt.Sprintf("%s, %d held", verb.Plural(len(all), "policy", "policies"), held)
	}
	return p
}

func (v statusView) repairsPart() statusPart {
	repaired, failed := 0, 0
	for _, one := range v.report.Repairs {
		repaired, failed = repaired+one.Repaired, failed+one.Failed
	}
	p := statusPart{"Done in the last 12 hours", v.report.Unknown["repairs"], "nothing"}
	if len(v.report.Repairs) > 0 {
		p.rest = fmt.Sprintf("%s, and %d failed", verb.Count(repaired, "repair"), failed)
	}
	return p
}

// waitingText names the target of a plan that waits, and since when it does.
func (v statusView) waitingText(w statusWaiting) string {
	return w.Target + ", for " + formatAge(metav1.NewTime(w.Since), v.now)
}
