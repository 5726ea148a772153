// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
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
	for _, w := range v.report.Waiting[:min(len(v.report.Waiting), maxPageRows)] {
		if served {
			waiting.Table.Columns = []string{"Diagnosis"}
			waiting.Table.Rows = append(waiting.Table.Rows, ui.Row{
				State: ui.Warn, Link: path.Join("/diagnosis", w.Namespace, w.Name), Cells: []string{w.Namespace + "/" + w.Name}, Below: v.waitingText(w),
			})
			continue
		}
		waiting.Commands = append(waiting.Commands, fault.Command{Purpose: v.waitingText(w), Line: w.Command})
	}
	waiting.Text = v.morePage(len(v.report.Waiting), "get", "-A")
	add(v.waitingPart(), waiting)
	policies := ui.Section{Table: ui.Table{Columns: []string{"POLICY", "MODE", "NOW"}}, Text: v.morePage(len(v.report.Policies), "get", "-A")}
	for _, one := range v.report.Policies[:min(len(v.report.Policies), maxPageRows)] {
		row := ui.Row{Cells: []string{one.Name, string(one.Mode), policyTexts[one.Mode]}}
		if len(one.Holds) > 0 {
			row.State, row.Cells[2] = ui.Warn, strings.Join(one.Holds, "; ")
		}
		policies.Table.Rows = append(policies.Table.Rows, row)
	}
	add(v.policiesPart(), policies)
	repairs := ui.Section{Table: ui.Table{Columns: []string{"FAULT", "REPAIRED", "FAILED", "LAST", "BY", "WORKLOAD"}}, Text: v.morePage(len(v.report.Repairs), "get", "-A")}
	for _, one := range v.report.Repairs[:min(len(v.report.Repairs), maxPageRows)] {
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

// morePage says how many rows are left out, and how to see them.
func (v statusView) morePage(rows int, args ...string) []string {
	if rows <= maxPageRows {
		return nil
	}
	return []string{fmt.Sprintf("and %d more: %s", rows-maxPageRows, v.api.commandLine(args...))}
}

// causesSection has a row for each cause.
func (v statusView) causesSection(language ui.Language, served bool) ui.Section {
	rows := v.report.rows
	s := ui.Section{
		Heading: language.Word("Faults"), Text: v.morePage(len(rows), "faults", "-A"),
		Table: ui.Table{Columns: []string{"FAULT", "HURTS", "HEAL", "FAULTS", "POD OR DEVICE", "CAUSE", "NODE", "SINCE"}},
	}
	for i, r := range rows[:min(len(rows), maxPageRows)] {
		first, cause := r.faults[0].Status, v.report.Causes[i]
		impact := fault.Impact(first.Impact)
		s.Table.Rows = append(s.Table.Rows, ui.Row{State: ui.StateOf(verb.Colours[impact]), Below: first.Summary, Cells: []string{
			first.Code, language.Word(verb.Hurts[impact]), language.Word(healText(r.faults[0])), strconv.Itoa(cause.Faults), r.subjectText(),
			cmp.Or(cause.Driver, cause.Volume), r.commonText(func(f *v1.MountFault) string { return f.Status.Node }, "nodes"),
			formatAge(metav1.NewTime(cause.Since), v.now),
		}})
		if served {
			s.Table.Rows[i].Link = path.Join("/fault", r.faults[0].Namespace, r.faults[0].Name)
		}
	}
	return s
}
