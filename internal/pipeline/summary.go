// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"slices"
	"strings"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
)

// summary says in one sentence what came of a Diagnosis that has ended, and what to do.
func (x *execution) summary(r report, v *verdict) string {
	s, said := &x.d.Status, lastMessage(r)
	if v != nil {
		said = v.message
	}
	text := ""
	switch s.Outcome {
	case v1.OutcomeHealed:
		text = "Repaired " + listed(s.Faults, v1.FaultHealed)
		if nothingLeft(r) {
			text = "Gone without a repair: " + listed(s.Faults, v1.FaultHealed)
		}
	case v1.OutcomePlanned:
		text = planned(s)
	case v1.OutcomeFaultFound:
		text = "Found, and not repaired: " + listed(s.Faults, v1.FaultPresent)
		if healed := listed(s.Faults, v1.FaultHealed); healed != "" {
			text = "Repaired " + healed + ". " + text
		}
		if said != "" {
			text += ": " + said
		}
	case v1.OutcomeNoFault:
		text = said
		switch {
		case slices.ContainsFunc(r.Operations, operationRun.foundGone):
			text = "The fault that was found has gone without a repair: " + said
		case v != nil:
			text = "No fault was found: " + said
		}
	case v1.OutcomeCompleted:
		text = fmt.Sprintf("OperationSet %s has succeeded", x.d.Spec.Set())
	default:
		text = said
	}
	return clip(strings.Join(strings.Fields(text), " "), v1.MaxSummaryBytes)
}

// Conclude writes into a Diagnosis that nothing has run for what findings say, as an execution that found them would:
// faults, outcome and summary. said is the summary if there are none.
func Conclude(d *v1.Diagnosis, findings []fault.Finding, said string) {
	x, r := &execution{d: d}, report{Operations: []operationRun{{NoFault: len(findings) == 0}}}
	d.Status.Faults = Faults(findings)
	d.Status.Outcome = outcome(d.Status.Faults, r, nil)
	if len(findings) == 0 {
		r.Operations[0].Message = said
	}
	d.Status.Summary = x.summary(r, nil)
}

// nothingLeft reports whether every action that is done found nothing left to do.
func nothingLeft(r report) bool {
	already := false
	for _, o := range r.Operations {
		for _, a := range o.Actions {
			if a.Phase == v1.ActionDone && !a.Already {
				return false
			}
			already = already || a.Already
		}
	}
	return already
}

// lastMessage is what the last operation says that says something.
func lastMessage(r report) (text string) {
	for _, o := range r.Operations {
		if o.Message != "" {
			text = o.Message
		}
	}
	return text
}

// listed names the first fault of a state, where it is, and how many more there are.
func listed(faults []v1.Fault, state v1.FaultState) (text string) {
	more := -1
	for _, f := range faults {
		if f.State != state {
			continue
		}
		if more++; more == 0 {
			text = f.Code + whereabouts(f)
		}
	}
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func whereabouts(f v1.Fault) string {
	var parts []string
	for _, p := range []struct{ name, value string }{{"container", f.Container}, {"volume", f.Volume}} {
		if p.value != "" {
			parts = append(parts, p.name+" "+p.value)
		}
	}
	switch {
	case f.Pod != nil && f.Pod.Name != "":
		parts = append(parts, "pod "+f.Pod.Namespace+"/"+f.Pod.Name)
	case f.Pod != nil && f.Pod.UID != "":
		parts = append(parts, "the pod with UID "+string(f.Pod.UID))
	case f.Mount != nil && f.Mount.Device != "":
		parts = append(parts, "device "+f.Mount.Device)
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// planned says what would be done.
func planned(s *v1.DiagnosisStatus) string {
	what := listed(s.Faults, v1.FaultPresent)
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
	return fmt.Sprintf("Found %s; planned %s, and changed nothing. To repair exactly this, create a Diagnosis with planHash %s; %s",
		what, count, s.Plan.Hash, loss)
}
