// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/render"
	"kubediag.org/kubediag/internal/ui"
)

// diagnosisPage is a Diagnosis as a time line, with its graph, its mounts and its plan, and buttons if the plan waits for approval.
func (s *pageServer) diagnosisPage(r *http.Request) (ui.Page, error) {
	d, err := s.readDiagnosis(r)
	if err != nil {
		return ui.Page{}, err
	}
	language := s.options.status.language
	p := ui.Page{Title: "Diagnosis " + d.Namespace + "/" + d.Name, Made: time.Now(), State: ui.Warn, Verdict: verdictOfDiagnosis(d)}
	switch {
	case d.Status.Phase == v1.DiagnosisFailed:
		p.State = ui.Bad
	case d.Ended():
		p.State = ui.Good
	}
	if d.Status.Plan != nil {
		p.Sections = append(p.Sections, s.planSection(d))
	}
	p.Sections = append(p.Sections, s.graphSection(r.Context(), d))
	if mounts := mountRows(d); len(mounts) > 0 {
		p.Sections = append(p.Sections, ui.Section{
			Heading: language.Word("Mounts"), Table: ui.Table{Columns: []string{"ACTION", "BEFORE", "AFTER"}, Rows: mounts},
		})
	}
	line := ui.Section{Heading: language.Word("Time line"), Table: ui.Table{Columns: []string{"OPERATION", "BEGAN", "TOOK", "RESULT"}}}
	for _, o := range d.Status.Operations {
		line.Table.Rows = append(line.Table.Rows, operationRow(o))
		for _, a := range o.Actions {
			row := ui.Row{Cells: []string{a.Kind + " " + a.Target, "", "", string(a.Phase)}, Below: a.Message}
			if a.Phase == v1.ActionFailed {
				row.State = ui.Bad
			}
			line.Table.Rows = append(line.Table.Rows, row)
			for _, c := range a.Calls {
				line.Table.Rows = append(line.Table.Rows, ui.Row{Cells: []string{c.Name + " " + c.Arguments, "", "", c.Result}})
			}
		}
	}
	line.Table.Rows, line.Text = ui.First(line.Table.Rows, maxPageRows, ": "+s.api.commandLine("report", d.Name, "-n", d.Namespace))
	p.Sections = append(p.Sections, line)
	return p, nil
}

func verdictOfDiagnosis(d *v1.Diagnosis) string {
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s", d.Spec.Target(), cmp.Or(string(d.Status.Outcome), string(d.Status.Phase)), d.Status.Summary))
}

// planSection is a plan with the buttons that its Diagnosis allows. The lines of its hash stand above them: a writer of the status chooses all other
// text, and a button is about these lines.
func (s *pageServer) planSection(d *v1.Diagnosis) ui.Section {
	language, plan, name := s.options.status.language, d.Status.Plan, path.Join(d.Namespace, d.Name)
	text := strings.Split(strings.TrimSpace(newStory(terminal.Screen{}, d).planText(d)), "\n")
	section := ui.Section{Heading: language.Word("Plan"), Text: text, Table: ui.Table{Columns: []string{"Lines of the hash"}}}
	for _, line := range plan.Changes {
		section.Table.Rows = append(section.Table.Rows, ui.Row{Cells: []string{line}})
	}
	button := func(action, label string) {
		section.Forms = append(section.Forms, ui.Form{Action: path.Join(action, name), Label: language.Word(label), Fields: []ui.Fact{{Name: "hash", Value: plan.Hash}}})
	}
	if canRepair(d) {
		button("/repair", "Carry out exactly this plan")
	}
	if stateOf(d) == diagnosisWaits {
		button("/approve", "Approve exactly this plan")
		button("/refuse", "Refuse: delete the Diagnosis")
	}
	return section
}

// approvePage has all plans that wait for approval, those that wait longest first.
func (s *pageServer) approvePage(r *http.Request) (ui.Page, error) {
	var list v1.DiagnosisList
	if err := s.api.server.List(r.Context(), &list, ctrlclient.InNamespace(s.namespace)); err != nil {
		return ui.Page{}, err
	}
	var waiting []*v1.Diagnosis
	for i := range list.Items {
		if d := &list.Items[i]; stateOf(d) == diagnosisWaits && d.Status.Plan != nil {
			waiting = append(waiting, d)
		}
	}
	slices.SortStableFunc(waiting, func(a, b *v1.Diagnosis) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	p := ui.Page{Title: "kubediag: " + s.options.status.language.Word("To approve"), Made: time.Now(), State: ui.Good, Verdict: "No plan waits for approval."}
	if n := len(waiting); n > 0 {
		p.State, p.Verdict = ui.Warn, fmt.Sprintf("Plans that wait for approval: %d.", n)
	}
	waiting, p.Notes = ui.First(waiting, maxRows, ", after these: "+s.api.commandLine("get", "-A"))
	for _, d := range waiting {
		section := s.planSection(d)
		section.Heading = d.Namespace + "/" + d.Name
		section.Facts = []ui.Fact{
			{Name: "what is wrong", Value: verdictOfDiagnosis(d)}, {Name: "since", Value: formatAge(d.CreationTimestamp, time.Now())},
			{Name: "Diagnosis", Value: section.Heading, Link: path.Join("/diagnosis", d.Namespace, d.Name)},
		}
		p.Sections = append(p.Sections, section)
	}
	return p, nil
}

// graphSection is the graph of the OperationSet with the path that the Diagnosis took, or why it is not known.
func (s *pageServer) graphSection(ctx context.Context, d *v1.Diagnosis) ui.Section {
	section := ui.Section{Heading: s.options.status.language.Word("Operations")}
	set := &v1.OperationSet{}
	switch err := s.api.server.Get(ctx, ctrlclient.ObjectKey{Name: d.Spec.Set()}, set); {
	case err != nil:
		section.Text = []string{fmt.Sprintf("The graph of OperationSet %s is not known: %v", d.Spec.Set(), err)}
	case d.Status.AdjacencyListHash != "" && set.Status.AdjacencyListHash != d.Status.AdjacencyListHash:
		section.Text = []string{fmt.Sprintf("OperationSet %s has another graph now than when this Diagnosis began.", set.Name)}
	default:
		section.Text, section.Steps = []string{"OperationSet " + set.Name}, stepsOf(set.Spec.AdjacencyList, d)
		if !ui.CanDraw(section.Steps) {
			section.Text, section.Steps = []string{fmt.Sprintf("OperationSet %s has %d operations: too many for a drawing.", set.Name, len(section.Steps))}, nil
		}
	}
	return section
}

// stepsOf are the operations of a graph, and how they went. Node 0 runs nothing and is left out.
func stepsOf(nodes []v1.Node, d *v1.Diagnosis) (steps []ui.Step) {
	numbered := slices.ContainsFunc(nodes, func(n v1.Node) bool { return n.ID != 0 })
	taken := d.Status.SucceededPath
	if n := len(d.Status.FailedPaths); len(taken) == 0 && n > 0 {
		taken = d.Status.FailedPaths[n-1]
	}
	for i, n := range nodes {
		if !numbered {
			n.ID = int32(i)
		}
		if n.ID == 0 {
			continue
		}
		step := ui.Step{ID: n.ID, Name: n.Operation, To: n.To, Result: "not run"}
		for _, o := range d.Status.Operations {
			if o.ID == n.ID {
				step.State, step.Result = operationRow(o).State, operationWords[o.Phase]
			}
		}
		for j, at := range taken[:max(0, len(taken)-1)] {
			if at.ID == n.ID {
				step.Taken = append(step.Taken, taken[j+1].ID)
			}
		}
		steps = append(steps, step)
	}
	return steps
}

// operationWords describe how an operation went.
var operationWords = map[v1.OperationPhase]string{
	v1.OperationSucceeded: "succeeded", v1.OperationFailed: "failed", v1.OperationNotApplicable: "not applicable", v1.OperationRunning: "running",
}

// operationRow is a row of the time line.
func operationRow(o v1.OperationRun) ui.Row {
	row := ui.Row{State: ui.Good, Cells: []string{o.Operation, "", "", string(o.Phase)}, Below: o.Message}
	if o.StartTime != nil {
		row.Cells[1] = o.StartTime.UTC().Format(time.RFC3339)
		if o.CompletionTime != nil {
			row.Cells[2] = render.Duration(o.CompletionTime.Sub(o.StartTime.Time))
		}
	}
	switch o.Phase {
	case v1.OperationFailed:
		row.State = ui.Bad
	case v1.OperationRunning, v1.OperationNotApplicable:
		row.State = ""
	case v1.OperationSucceeded:
	}
	return row
}

// mountRows are the mounts that a Diagnosis changes, as they were and as they are.
func mountRows(d *v1.Diagnosis) (rows []ui.Row) {
	for _, o := range d.Status.Operations {
		for _, a := range o.Actions {
			if a.Mount == nil || len(rows) == maxPageRows {
				continue
			}
			m := a.Mount // as mountinfo has it
			before := strings.TrimSpace(m.FSType + " " + m.Device)
			if m.Root != "" {
				before += ", root " + m.Root
			}
			if m.MountInfoID != 0 {
				before += fmt.Sprintf(", mount %d of mount namespace %d", m.MountInfoID, m.Namespace)
			}
			row := ui.Row{Cells: []string{a.Kind + " " + a.Target, strings.TrimPrefix(before, ", "), "as before: " + string(a.Phase)}}
			switch a.Phase {
			case v1.ActionDone:
				row.State, row.Cells[2] = ui.Good, cmp.Or(a.Message, "done")+provenText(d, a.Fault)
			case v1.ActionFailed:
				row.State, row.Cells[2] = ui.Bad, "failed: "+a.Message
			case v1.ActionPlanned:
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// provenText says whether a look after the repair has found the faults of a code healed.
func provenText(d *v1.Diagnosis, code string) string {
	same, healed := 0, 0
	for _, f := range d.Status.Faults {
		if f.Code == code {
			same++
			if f.State == v1.FaultHealed {
				healed++
			}
		}
	}
	switch same {
	case 0:
		return ""
	case healed:
		return "; " + code + ": proven healed by another look"
	}
	return fmt.Sprintf("; %s: %d of %d proven healed", code, healed, same)
}
