// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	v1 "kubediag.org/kubediag/api/v1"
)

// recoverReport is the JSON of recover: its plans and their results.
type recoverReport struct {
	SchemaVersion int `json:"schemaVersion"`
	// Node is the name of the machine, Time when the first scan ended.
	Node string    `json:"node"`
	Time time.Time `json:"time"`
	// Faults counts the faults of all repairs, and Healed those that are healed or gone.
	Faults int `json:"faults"`
	Healed int `json:"healed"`
	// Repairs and Gone are never null. Gone are faults that were named, and are gone since the scan that has numbered
	// them.
	Repairs []repairReport `json:"repairs"`
	Gone    []scanFault    `json:"gone"`
	// Next is the command that carries out the plans. It is left out if there is none.
	Next string `json:"next,omitempty"`
	// Looked is the coverage of the first scan.
	Looked scanCoverage `json:"looked"`
}

// repairReport is a plan with its result and the faults that it repairs.
type repairReport struct {
	repairResult
	// Faults is never null.
	Faults []scanFault `json:"faults"`
}

// repairResult is a plan and its result.
type repairResult struct {
	Result repairProgress `json:"result"`
	// Reason is for people: why it was refused or has failed, or the proof of a second look.
	Reason string `json:"reason,omitempty"`
	// PlanHash is that of the plan. It is left out if there is none.
	PlanHash string `json:"planHash,omitempty"`
	// Actions are those that were tried, or those of the plan. It is never null.
	Actions []v1.Action `json:"actions"`
}

// recoverReportOf is the report of a recovery.
func (r *recovery) recoverReportOf() *recoverReport {
	report := &recoverReport{
		SchemaVersion: schemaVersion, Node: r.view.report.Node, Time: r.view.report.Time, Repairs: []repairReport{}, Gone: []scanFault{}, Looked: r.view.report.Looked,
	}
	for _, t := range r.targets {
		one := repairReport{repairResult: t.resultOf(), Faults: []scanFault{}}
		for _, f := range t.faults {
			one.Faults = append(one.Faults, *f)
		}
		report.Repairs = append(report.Repairs, one)
	}
	report.Healed, report.Faults = r.countHealed()
	for _, f := range r.gone {
		report.Gone = append(report.Gone, *f)
	}
	if r.countAt(progressPlanned) > 0 {
		report.Next = r.next
	}
	return report
}

// countHealed counts the faults that are healed or gone, and all of them.
func (r *recovery) countHealed() (good, all int) {
	for _, t := range r.targets {
		all += len(t.faults)
		if t.progress == progressHealed || t.progress == progressGone {
			good += len(t.faults)
		}
	}
	return good, all
}

// resultOf is the result of a target.
func (t *repairTarget) resultOf() repairResult {
	r := repairResult{Result: t.progress, Reason: t.reason, Actions: diagnosisActions(t.done)}
	if len(r.Actions) == 0 {
		r.Actions = diagnosisActions(t.plan)
	}
	if t.plan != nil && t.plan.Status.Plan != nil {
		r.PlanHash = t.plan.Status.Plan.Hash
	}
	if t.progress == progressPlanned && t.plan == nil {
		r.Result = progressNotPlanned
	}
	return r
}

// diagnosisActions are those of a Diagnosis, which may be nil.
func diagnosisActions(d *v1.Diagnosis) []v1.Action {
	all := []v1.Action{}
	if d == nil {
		return all
	}
	for _, run := range d.Status.Operations {
		all = append(all, run.Actions...)
	}
	return all
}
