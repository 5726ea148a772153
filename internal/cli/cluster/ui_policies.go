// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/ui"
)

// policiesPage has the RecoveryPolicies, and the holds that each has now.
func (s *pageServer) policiesPage(r *http.Request) (ui.Page, error) {
	var list v1.RecoveryPolicyList
	if err := s.api.server.List(r.Context(), &list); err != nil {
		return ui.Page{}, err
	}
	report := &statusReport{Time: time.Now()}
	report.addPolicies(list.Items)
	byName := map[string]*v1.RecoveryPolicy{}
	for i := range list.Items {
		byName[list.Items[i].Name] = &list.Items[i]
	}
	language := s.options.status.language
	table := ui.Table{Columns: []string{"POLICY", "MODE", "NOW", "FAULT CODES", "NEXT WINDOW"}}
	held := 0
	for _, one := range report.Policies {
		of := byName[one.Name]
		row := ui.Row{State: ui.Good, Cells: []string{one.Name, string(one.Mode), policyTexts[one.Mode], cmp.Or(strings.Join(of.Spec.FaultCodes, ", "), language.Word("all")), ""}}
		if next := of.Status.NextWindowTime; next != nil {
			row.Cells[4] = next.UTC().Format("2006-01-02 15:04 MST")
		}
		if len(one.Holds) > 0 {
			held++
			row.State, row.Cells[2] = ui.Warn, strings.Join(one.Holds, "; ")
		}
		if why := notReady(of.Status.Conditions); why != "" {
			row.State, row.Below = ui.Bad, why
		}
		table.Rows = append(table.Rows, row)
	}
	p := ui.Page{Title: "kubediag: " + language.Word("Policies"), Made: report.Time, Verdict: statusView{report: report}.policiesPart().rest}
	if held > 0 {
		p.State = ui.Warn
	}
	return s.tablePage(p, table, "recoverypolicies"), nil
}

// tablePage is a page with one table. If rows are left out, it says how to get the objects of this resource.
func (s *pageServer) tablePage(p ui.Page, table ui.Table, resource string) ui.Page {
	table.Rows, p.Notes = ui.First(table.Rows, maxPageRows, ": "+s.api.kubectlLine("get", resource))
	if len(table.Rows) > 0 {
		_, heading, _ := strings.Cut(p.Title, ": ")
		p.Sections = []ui.Section{{Heading: heading, Table: table}}
	}
	return p
}

// notReady is the message of the condition Ready if it is False.
func notReady(conditions []metav1.Condition) string {
	if c := meta.FindStatusCondition(conditions, v1.ConditionReady); c != nil && c.Status == metav1.ConditionFalse {
		return c.Reason + ": " + c.Message
	}
	return ""
}

// triggersPage has the Triggers, their signals, and their last Diagnoses.
func (s *pageServer) triggersPage(r *http.Request) (ui.Page, error) {
	var list v1.TriggerList
	if err := s.api.server.List(r.Context(), &list); err != nil {
		return ui.Page{}, err
	}
	language, now := s.options.status.language, time.Now()
	slices.SortFunc(list.Items, func(a, b v1.Trigger) int { return cmp.Compare(a.Name, b.Name) })
	table := ui.Table{Columns: []string{"TRIGGER", "SIGNAL", "OPERATIONSET", "MODE", "DIAGNOSES", "LAST"}}
	for _, t := range list.Items {
		row := ui.Row{State: ui.Good, Cells: []string{
			t.Name, signalOf(t.Spec.SourceTemplate), t.Spec.OperationSet, cmp.Or(string(t.Spec.Mode), string(v1.ModeRecover)), strconv.FormatInt(t.Status.Fired, 10), "",
		}}
		if t.Status.LastFiredTime != nil {
			row.Cells[5] = formatAge(*t.Status.LastFiredTime, now)
		}
		if t.Status.LastDiagnosis != "" {
			row.Link, row.Below = path.Join("/diagnosis", s.options.status.home, t.Status.LastDiagnosis), "last Diagnosis "+t.Status.LastDiagnosis
		}
		switch why := notReady(t.Status.Conditions); {
		case t.Spec.Suspend:
			row.State, row.Below = ui.Warn, "suspended"
		case why != "":
			row.State, row.Below = ui.Bad, why
		}
		for _, d := range t.Status.Dropped {
			row.Below = strings.TrimPrefix(fmt.Sprintf("%s; %s: %d dropped", row.Below, d.Reason, d.Count), "; ")
		}
		table.Rows = append(table.Rows, row)
	}
	p := ui.Page{Title: "kubediag: " + language.Word("Triggers"), Made: now, Verdict: verb.Count(len(list.Items), "Trigger")}
	return s.tablePage(p, table, "triggers"), nil
}

// signalOf names the source of a Trigger.
func signalOf(s v1.SourceTemplate) string {
	switch {
	case s.PrometheusAlertTemplate != nil:
		return "alert"
	case s.KubernetesEventTemplate != nil:
		return "Event of Kubernetes"
	case s.CommonEventTemplate != nil:
		return "CommonEvent"
	case s.CronTemplate != nil:
		return "schedule " + s.CronTemplate.Schedule
	case s.MountFaultTemplate != nil:
		return "MountFault"
	}
	return "?"
}
