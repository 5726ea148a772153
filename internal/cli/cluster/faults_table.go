// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// maxRows is how many rows of one kind the table has before they are put together by namespace, and then all together.
const maxRows = 8

// faultsView writes faults for people.
type faultsView struct {
	screen terminal.Screen
	api    *client
	wide   bool // one row for each fault
	brief  bool // a row for each cause, with no sentence below it and no column HEAL
	now    time.Time
	// problems say which nodes are not watched, and home is the namespace of kubediag.
	problems []string
	home     string
	// states are those of the Diagnoses that the faults name.
	states map[string]diagnosisState
}

// faultRow is a row of the table: faults of one code that hurt alike, are healed alike, and most likely have one cause.
type faultRow struct{ faults []*v1.MountFault }

func (v faultsView) listText(list []*v1.MountFault, namespace string) string {
	where := placeText(namespace)
	if len(list) == 0 {
		// No known fault is no good news if a node is not watched.
		mark, colour, note := "✓", terminal.Green, "No fault is known in "+where+"."
		if len(v.problems) > 0 {
			mark, colour = "!", terminal.Yellow
			note = "No fault is known in " + where + ", but that counts only for what was looked at."
		}
		if namespace != "" {
			note += " All namespaces: " + v.api.commandLine("faults", "-A")
		}
		text := v.problemsText() + v.screen.Marked("", mark, colour, note)
		if len(v.problems) > 0 {
			args := []string{"doctor"}
			if v.home != "" && v.home != defaultHome {
				args = append(args, "--kubediag-namespace="+v.home)
			}
			text += "\nNext:\n" + v.screen.Hints([]terminal.Hint{{Line: v.api.commandLine(args...), Purpose: "checks the agents and the manager"}}, nil)
		}
		return v.screen.Text(text)
	}
	rows := groupRows(list, v.wide)
	return v.screen.Text(v.screen.Marked("", "✗", terminal.Red, verdictText(list, where)) + v.problemsText() + "\n" + v.tableText(rows) +
		"\nNext:\n" + v.screen.Hints(v.nextHints(rows), nil))
}

// verdictText counts faults, and the pods that they hurt.
func verdictText(list []*v1.MountFault, where string) string {
	count, hurt := 0, map[v1.FaultImpact]map[string]bool{v1.ImpactNow: {}, v1.ImpactTerminating: {}, v1.ImpactNextStart: {}}
	for _, f := range list {
		count += max(1, int(f.Status.Unlisted))
		if pods := hurt[f.Status.Impact]; f.Status.Pod != nil && pods != nil {
			pods[faultSubject(f)] = true
		}
	}
	verdict := fmt.Sprintf("%s in %s.", verb.Count(count, "fault"), where)
	for _, part := range []struct {
		impact v1.FaultImpact
		text   string
	}{{v1.ImpactNow, "Hurt now"}, {v1.ImpactTerminating, "Deleted and cannot go"}, {v1.ImpactNextStart, "At risk at the next start"}} {
		if n := len(hurt[part.impact]); n > 0 {
			verdict += fmt.Sprintf(" %s: %s.", part.text, verb.Count(n, "pod"))
		}
	}
	return verdict
}

// problemsText has a line for each problem of those who look for faults.
func (v faultsView) problemsText() (text string) {
	for _, problem := range v.problems {
		text += v.screen.Marked("", "!", terminal.Yellow, problem)
	}
	return text
}

// groupRows groups faults that are sorted. The order of the rows is that of their first faults.
func groupRows(list []*v1.MountFault, single bool) (rows []faultRow) {
	kind := func(f *v1.MountFault) string {
		return fmt.Sprintf("%s\x00%s\x00%s\x00%s", f.Status.Code, f.Status.Impact, healText(f), f.Status.Driver)
	}
	exact := func(f *v1.MountFault) string {
		if w := f.Status.Workload; w != nil {
			return f.Namespace + "\x00" + w.Kind + "\x00" + w.Name + "\x00" + f.Status.Volume
		}
		return f.Namespace + "\x00" + f.Status.Target + "\x00" + f.Status.Volume
	}
	namespace := func(f *v1.MountFault) string { return f.Namespace }
	whole := func(*v1.MountFault) string { return "" }
	for _, faults := range verb.Group(list, kind) {
		if single {
			for i := range faults {
				rows = append(rows, faultRow{faults[i : i+1]})
			}
			continue
		}
		for _, same := range verb.Merge(faults, maxRows, exact, namespace, whole) {
			rows = append(rows, faultRow{same})
		}
	}
	slices.SortStableFunc(rows, func(a, b faultRow) int { return compareFaults(a.faults[0], b.faults[0]) })
	return rows
}

// narrowScreen is the width below which the table ends with the subject.
const narrowScreen = 80

// tableText has a row for each group and its reason below.
func (v faultsView) tableText(groups []faultRow) string {
	volumes, volume := "VOLUME", func(f *v1.MountFault) string { return f.Status.Volume }
	if v.brief {
		volumes, volume = "CAUSE", func(f *v1.MountFault) string { return cmp.Or(f.Status.Driver, f.Status.Volume) }
	}
	table := render.Table{Rows: []render.Row{{Cells: []string{"FAULT", "HURTS", "HEAL", "POD OR DEVICE", volumes, "NODE", "SINCE"}}}, Painted: 1, Subject: 3}
	for _, r := range groups {
		first := r.faults[0].Status
		reason := printable.Quoted(first.Summary)
		if first.Diagnosis != "" {
			reason += "; Diagnosis " + printable.Quoted(first.Diagnosis) + " " + v.states[first.Diagnosis].text()
		}
		impact := fault.Impact(first.Impact)
		table.Rows = append(table.Rows, render.Row{Colour: verb.Colours[impact], Below: reason, Cells: []string{
			first.Code, verb.Hurts[impact], healText(r.faults[0]), r.subjectText(), verb.Common(r.faults, volume, "volumes"),
			verb.Common(r.faults, func(f *v1.MountFault) string { return f.Status.Node }, "nodes"), formatAge(first.Since, v.now),
		}})
	}
	if v.brief { // the names are to fit
		table.Subject = 2
		for i, row := range table.Rows {
			table.Rows[i].Below, table.Rows[i].Cells = "", slices.Delete(row.Cells, 2, 3)
		}
	}
	if v.screen.Width > 0 && v.screen.Width < narrowScreen {
		for i := range table.Rows {
			table.Rows[i].Cells = table.Rows[i].Cells[:table.Subject+1]
		}
	}
	return table.Text(v.screen)
}

// subjectText names the target of the fault or, for several faults, the pods or their workload.
func (r faultRow) subjectText() string {
	first := r.faults[0]
	pods := verb.Distinct(r.faults, faultSubject)
	spaces := verb.Distinct(r.faults, func(f *v1.MountFault) string { return f.Namespace })
	switch w := first.Status.Workload; {
	case len(pods) == 1:
		return pods[0]
	case first.Status.Pod == nil:
		return verb.Count(len(pods), "place")
	case len(spaces) > 1:
		return fmt.Sprintf("%s in %d namespaces", verb.Count(len(pods), "pod"), len(spaces))
	case w != nil && len(verb.Distinct(r.faults, workloadName)) == 1:
		return printable.Quoted(first.Namespace+"/"+w.Name) + fmt.Sprintf(" ×%d", len(pods))
	}
	return printable.Quoted(first.Namespace) + ": " + verb.Count(len(pods), "pod")
}

// healText says who can heal a fault: "paused" if kubediag could, and a policy holds all repairs.
func healText(f *v1.MountFault) string {
	if pausedBy(f) != "" {
		return "paused"
	}
	return verb.Heals[fault.Heal(f.Status.Heal)]
}

// pausedBy is the policy that holds a repair which kubediag could make; empty if there is none.
func pausedBy(f *v1.MountFault) string {
	if r := f.Status.Recovery; r != nil && (f.Status.Heal == v1.HealSafe || f.Status.Heal == v1.HealAutomatic) {
		return r.PausedBy
	}
	return ""
}

// faultSubject is the pod, or the target of a fault of the node.
func faultSubject(f *v1.MountFault) string {
	if p := f.Status.Pod; p != nil {
		return printable.Quoted(p.Namespace + "/" + p.Name)
	}
	return printable.Quoted(f.Status.Target)
}

func workloadName(f *v1.MountFault) string {
	if w := f.Status.Workload; w != nil {
		return w.Kind + "/" + w.Name
	}
	return f.Status.Target
}

// nextHints are the next commands: about the worst row, and the repair of the first row that can be repaired safely.
func (v faultsView) nextHints(rows []faultRow) (list []terminal.Hint) {
	add := func(line, purpose string) { list = append(list, terminal.Hint{Line: line, Purpose: purpose}) }
	worst := rows[0].faults[0]
	add(v.api.commandLine("show", "mf/"+worst.Name, "-n", worst.Namespace), "evidence, plan and commands of the first")
	mountFault := worst
	for _, r := range rows {
		if s := r.faults[0].Status; s.Heal == v1.HealSafe && s.Diagnosis == "" && pausedBy(r.faults[0]) == "" {
			mountFault = r.faults[0]
			break
		}
	}
	waiting := "" // the Diagnosis of the first fault whose plan waits for approval
	if i := slices.IndexFunc(rows, func(r faultRow) bool { return v.states[r.faults[0].Status.Diagnosis] == diagnosisWaits }); i >= 0 {
		waiting = rows[i].faults[0].Status.Diagnosis
		namespace, name, _ := strings.Cut(waiting, "/")
		add(v.api.commandLine("approve", name, "-n", namespace), "its plan, which waits for approval")
	}
	plan := "its plan; it asks before it heals"
	if by := pausedBy(mountFault); by != "" {
		plan = "its plan, which policy " + by + " holds"
		add(v.api.kubectlLine("edit", "recoverypolicy", by), "set spec.paused to false to have it repaired")
	}
	switch p := mountFault.Status.Pod; {
	case waiting != "" && mountFault.Status.Diagnosis == waiting: // run would repeat the plan
	case p != nil:
		add(v.api.commandLine("run", "pod/"+p.Name, "-n", p.Namespace), plan)
	default:
		add(v.api.commandLine("run", "node/"+mountFault.Status.Node), plan)
	}
	if worst.Status.Code != v1.UnlistedFaults {
		add(v.api.commandLine("explain", worst.Status.Code), "cause, proof, repair by hand, prevention")
	}
	return list
}
