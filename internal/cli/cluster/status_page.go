// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"path"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/ui"
)

// maxPageRows bounds the rows of each table of a page.
const maxPageRows = 200

// page is the report as a page. It has the sentences of the screen, and more rows. If it is served, its rows lead to other pages.
func (v statusView) page(language ui.Language, served bool) ui.Page {
	_, colour, verdict := v.verdict()
	where := "cluster"
	if v.report.Namespace != "" {
		where = placeText(v.report.Namespace)
	}
	p := ui.Page{Language: language, Title: "kubediag: " + where, Made: v.now, State: ui.StateOf(colour), Verdict: verdict, Notes: v.problems}
	add := func(of statusPart, s ui.Section) {
		s.Heading, s.Text = language.Word(of.heading), append([]string{of.rest}, s.Text...)
		if of.unknown != "" {
			s.Text[0] = "not known: " + of.unknown
		}
		p.Sections = append(p.Sections, s)
	}
	if len(v.report.Causes) > 0 {
		p.Sections = append(p.Sections, v.causesSection(language, served))
	}
	var waiting ui.Section
	objects := ": " + v.api.commandLine("get", "-A")
	plans, more := ui.First(v.report.Waiting, maxPageRows, objects)
	waiting.Text = more
	for _, w := range plans {
		if served {
			waiting.Table.Columns = []string{"Diagnosis"}
			waiting.Table.Rows = append(waiting.Table.Rows, ui.Row{
				State: ui.Warn, Link: path.Join("/diagnosis", w.Namespace, w.Name), Cells: []string{w.Namespace + "/" + w.Name}, Below: v.waitingText(w),
			})
			continue
		}
		waiting.Commands = append(waiting.Commands, fault.Command{Purpose: v.waitingText(w), Line: w.Command})
	}
	add(v.waitingPart(), waiting)
	held, more := ui.First(v.report.Policies, maxPageRows, objects)
	policies := ui.Section{Table: ui.Table{Columns: []string{"POLICY", "MODE", "NOW"}}, Text: more}
	for _, one := range held {
		row := ui.Row{Cells: []string{one.Name, string(one.Mode), policyTexts[one.Mode]}}
		if len(one.Holds) > 0 {
			row.State, row.Cells[2] = ui.Warn, strings.Join(one.Holds, "; ")
		}
		policies.Table.Rows = append(policies.Table.Rows, row)
	}
	add(v.policiesPart(), policies)
	done, more := ui.First(v.report.Repairs, maxPageRows, objects)
	repairs := ui.Section{Table: ui.Table{Columns: []string{"FAULT", "REPAIRED", "FAILED", "LAST", "BY", "WORKLOAD"}}, Text: more}
	for _, one := range done {
		row := ui.Row{Cells: []string{
			one.Code, strconv.Itoa(one.Repaired), strconv.Itoa(one.Failed), formatAge(metav1.NewTime(one.Last), v.now), one.Origin, one.Subject,
		}}
		if one.Failed > 0 {
			row.State = ui.Bad
		}
		repairs.Table.Rows = append(repairs.Table.Rows, row)
	}
	add(v.repairsPart(), repairs)
	return p
}

// causesSection has a row for each cause.
func (v statusView) causesSection(language ui.Language, served bool) ui.Section {
	rows, more := ui.First(v.report.rows, maxPageRows, ": "+v.api.commandLine("faults", "-A"))
	s := ui.Section{
		Heading: language.Word("Faults"), Text: more,
		Table: ui.Table{Columns: []string{"FAULT", "HURTS", "HEAL", "FAULTS", "POD OR DEVICE", "CAUSE", "NODE", "SINCE"}},
	}
	for i, r := range rows {
		first, cause := r.faults[0].Status, v.report.Causes[i]
		impact := fault.Impact(first.Impact)
		s.Table.Rows = append(s.Table.Rows, ui.Row{State: ui.StateOf(verb.Colours[impact]), Below: first.Summary, Cells: []string{
			first.Code, language.Word(verb.Hurts[impact]), language.Word(healText(r.faults[0])), strconv.Itoa(cause.Faults), r.subjectText(),
			cmp.Or(cause.Driver, cause.Volume), verb.Common(r.faults, func(f *v1.MountFault) string { return f.Status.Node }, "nodes"),
			formatAge(metav1.NewTime(cause.Since), v.now),
		}})
		if served {
			s.Table.Rows[i].Link = path.Join("/fault", r.faults[0].Namespace, r.faults[0].Name)
		}
	}
	return s
}
