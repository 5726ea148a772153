// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
)

// progress writes into the status how far a run is.
func (x *execution) progress(r report) {
	s := &x.d.Status
	s.OperationResults = r.Results
	s.Operations, s.Artifacts, s.FailedPaths, s.SucceededPath, s.Plan = nil, nil, nil, nil, nil
	var findings []fault.Finding
	for _, o := range r.Operations {
		s.Operations = append(s.Operations, o.OperationRun)
		for _, a := range o.Gone {
			findings = slices.DeleteFunc(findings, a.Covers)
		}
		findings = append(findings, o.Findings...)
		if o.Plan != nil {
			s.Plan = o.Plan
		}
		s.Artifacts = append(s.Artifacts, o.Artifacts...)
	}
	s.Faults = Faults(findings)
	for _, path := range r.Failed[:min(len(r.Failed), v1.MaxListedPaths)] {
		s.FailedPaths = append(s.FailedPaths, x.path(path))
	}
	if len(r.Path) > 0 {
		s.Checkpoint = &v1.Checkpoint{PathIndex: x.graph.Rank(r.Path), NodeIndex: int32(r.Reached)}
	}
	if r.Succeeded {
		s.SucceededPath = x.path(r.Path)
	}
}

func (x *execution) path(ids []int32) v1.Path {
	path := make(v1.Path, len(ids))
	for i, id := range ids {
		n := x.graph.Node(id)
		path[i] = v1.Node{ID: n.ID, To: n.To, Operation: n.Operation}
	}
	return path
}

// conclude writes the end into the status. No verdict is success. Without a report, what is known from before stays.
func (x *execution) conclude(r report, v *verdict) {
	s := &x.d.Status
	if len(r.Path) > 0 {
		x.progress(r)
	}
	x.copyArtifacts()
	now := metav1.Now()
	s.CompletionTime, s.Outcome = &now, outcome(s.Faults, r, v)
	c := metav1.Condition{Type: v1.ConditionComplete, Status: metav1.ConditionTrue, Reason: v1.ReasonComplete, Message: "Diagnosis is completed"}
	s.Phase = v1.DiagnosisSucceeded
	if v != nil {
		s.Phase, c.Status, c.Reason, c.Message = v1.DiagnosisFailed, metav1.ConditionFalse, v.reason, v.message
	}
	x.condition(c)
	s.Summary = x.summary(r, v)
}

// verdictOn says why a run did not succeed: the failures first, for a person can do something about them.
func (x *execution) verdictOn(r report) *verdict {
	if r.Succeeded || r.Planned {
		return nil
	}
	reason := v1.ReasonNotApplicable
	var failed, negative []string
	for _, o := range r.Operations {
		switch o.Phase {
		case v1.OperationFailed:
			reason = v1.ReasonOperationFailed
			failed = append(failed, fmt.Sprintf("operation %s (node %d) failed after %s: %s", o.Operation, o.ID, attempts(o.Attempts), o.Message))
		case v1.OperationNotApplicable:
			negative = append(negative, fmt.Sprintf("operation %s (node %d) is not applicable: %s", o.Operation, o.ID, o.Message))
		}
	}
	texts := slices.Concat(failed, negative)
	if r.DeadlineExceeded {
		reason, texts = v1.ReasonDeadlineExceeded, slices.Insert(texts, 0, x.passed())
	}
	return &verdict{reason: reason, message: strings.Join(texts, "; ")}
}

func attempts(n int32) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

// outcome says in one word what came of a Diagnosis that has ended.
func outcome(all []v1.Fault, r report, v *verdict) v1.Outcome {
	switch {
	case r.Planned:
		return v1.OutcomePlanned
	case slices.ContainsFunc(all, func(f v1.Fault) bool { return f.State != v1.FaultHealed }):
		return v1.OutcomeFaultFound
	case len(all) > 0:
		return v1.OutcomeHealed
	case v == nil && slices.ContainsFunc(r.Operations, func(o operationRun) bool { return o.NoFault || o.foundGone() }):
		return v1.OutcomeNoFault
	case v == nil:
		return v1.OutcomeCompleted
	case v.reason == v1.ReasonNotApplicable:
		return v1.OutcomeNoFault
	}
	return v1.OutcomeError
}

// NewAction returns an action of a plan as statuses have it, planned.
func NewAction(a fault.Action) v1.Action {
	return v1.Action{
		Kind: string(a.Kind), Target: clip(a.Target, maxMessageBytes), Mount: mountOf(a.Mount), Fault: string(a.Fault),
		Safety: clip(a.Safety, maxMessageBytes), Loss: clip(a.Loss, maxMessageBytes), Phase: v1.ActionPlanned,
	}
}

func microTime(t time.Time) *metav1.MicroTime {
	if t.IsZero() {
		return nil
	}
	return &metav1.MicroTime{Time: t}
}
