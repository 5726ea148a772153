// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/processor"
)

// summary is the result of a Diagnosis that has ended and the next step, in one sentence.
func summary(d *v1.Diagnosis, r report, t *terminalError) string {
	s, message := &d.Status, "" // that of the last operation which has one, or of the error
	for _, o := range r.Operations {
		message = cmp.Or(o.Message, message)
	}
	if t != nil {
		message = t.message
	}
	text := ""
	switch s.Outcome {
	case v1.OutcomeHealed:
		text = "Repaired " + firstFault(s.Faults, v1.FaultHealed)
		if r.nothingLeft() {
			text = "Gone without a repair: " + firstFault(s.Faults, v1.FaultHealed)
		}
	case v1.OutcomePlanned:
		text = plannedSummary(s)
	case v1.OutcomeFaultFound:
		text = "Found, and not repaired: " + firstFault(s.Faults, v1.FaultPresent)
		if healed := firstFault(s.Faults, v1.FaultHealed); healed != "" {
			text = "Repaired " + healed + ". " + text
		}
		if message != "" {
			next := "" // step of a person about the first fault that is present
			if i := slices.IndexFunc(s.Faults, func(f v1.Fault) bool { return f.State == v1.FaultPresent }); i >= 0 {
				next = fault.Known().Entry(fault.Code(s.Faults[i].Code)).Next
			}
			return causeAndNext(text, message, next)
		}
	case v1.OutcomeNoFault:
		text = message
		switch {
		case slices.ContainsFunc(r.Operations, operationRun.foundGone):
			text = "The fault that was found has gone without a repair: " + message
		case t != nil:
			text = "No fault was found: " + message
		}
	case v1.OutcomeCompleted:
		text = fmt.Sprintf("OperationSet %s has succeeded", d.Spec.Set())
	default:
		text = message
	}
	return printable.ClipMiddle(oneLine(text), v1.MaxSummaryBytes)
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// causeAndNext is a sentence of a result, its cause and the next step, which is never cut: the cause is. A message that does not
// name the next step ends with another one, and is cut in its middle.
func causeAndNext(result, message, next string) string {
	text := oneLine(result + ": " + message)
	before, after, found := strings.Cut(message, next)
	if len(text) <= v1.MaxSummaryBytes || next == "" || !found {
		return printable.ClipMiddle(text, v1.MaxSummaryBytes)
	}
	const lead = ". Next: "
	cause := oneLine(strings.TrimSuffix(before, lead) + after)
	result = printable.ClipMiddle(oneLine(result), v1.MaxSummaryBytes/3)
	return result + ": " + printable.ClipMiddle(cause, v1.MaxSummaryBytes-len(result)-len(": ")-len(lead)-len(next)) + lead + next
}

// Conclude writes findings into a Diagnosis that was not run, as an execution that found them would: faults, outcome and
// summary. none is the summary if there are no findings, and no place that could not be judged.
func Conclude(d *v1.Diagnosis, findings []fault.Finding, unjudged []string, none string) {
	r := report{Operations: []operationRun{{NoFault: len(findings) == 0}}}
	if len(findings) == 0 {
		r.last().Message = none
	}
	var end *terminalError
	if err := processor.UnjudgedError(processor.Result{Findings: findings, Unjudged: unjudged}); err != nil {
		end = &terminalError{reason: v1.ReasonNotJudged, message: "no fault was found, but " + err.Error()}
	}
	d.Status.Faults = Faults(findings)
	d.Status.Outcome = outcome(d.Status.Faults, r, end)
	d.Status.Summary = summary(d, r, end)
}

// firstFault names the first fault of a state, where it is, and how many more there are.
func firstFault(faults []v1.Fault, state v1.FaultState) string {
	same := slices.DeleteFunc(slices.Clone(faults), func(f v1.Fault) bool { return f.State != state })
	if len(same) == 0 {
		return ""
	}
	f := same[0]
	var parts []string
	if f.Container != "" {
		parts = append(parts, "container "+f.Container)
	}
	if f.Volume != "" {
		parts = append(parts, "volume "+f.Volume)
	}
	switch {
	case f.Pod != nil && f.Pod.Name != "":
		parts = append(parts, "pod "+f.Pod.Namespace+"/"+f.Pod.Name)
	case f.Pod != nil && f.Pod.UID != "":
		parts = append(parts, "the pod with UID "+string(f.Pod.UID))
	case f.Mount != nil && f.Mount.Device != "":
		parts = append(parts, "device "+f.Mount.Device)
	}
	text := f.Code
	if len(parts) > 0 {
		text += " (" + strings.Join(parts, ", ") + ")"
	}
	if len(same) > 1 {
		text += fmt.Sprintf(" and %d more", len(same)-1)
	}
	return text
}

// plannedSummary names the actions that are planned.
func plannedSummary(s *v1.DiagnosisStatus) string {
	what := firstFault(s.Faults, v1.FaultPresent)
	if what == "" {
		what = "no fault"
	}
	loss, count := "nothing would be lost", "1 action"
	if s.Plan.Actions != 1 {
		count = fmt.Sprintf("%d actions", s.Plan.Actions)
	}
	if !s.Plan.Lossless {
		loss = "could be lost: " + strings.Join(s.Plan.Loss, "; ")
	}
	result := fmt.Sprintf("Found %s; planned %s, and changed nothing", printable.ClipMiddle(what, v1.MaxSummaryBytes/3), count)
	if len(s.Plan.Held) > 0 {
		return result + ". Held: " + printable.ClipMiddle(oneLine(strings.Join(s.Plan.Held, "; ")), v1.MaxSummaryBytes-len(result)-len(". Held: "))
	}
	next := "To repair exactly this, create a Diagnosis with planHash " + s.Plan.Hash
	return result + ". " + next + "; " + printable.ClipMiddle(loss, max(16, v1.MaxSummaryBytes-len(result)-len(next)-4))
}
