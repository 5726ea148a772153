// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/printable"
)

// refuse ends the Diagnosis: nothing that is waited for would change the answer.
func (r *Reconciler) refuse(v *visit, reason, message string) {
	now := metav1.NewTime(r.Clock.Now())
	s := &v.is.Status
	s.Phase, s.Outcome, s.CompletionTime = v1.DiagnosisFailed, v1.OutcomeError, &now
	v.sum(message)
	if s.StartTime == nil {
		s.StartTime = &now
	}
	if !started(v.was) {
		r.set(v, v1.ConditionAccepted, metav1.ConditionFalse, reason, message)
	}
	r.set(v, v1.ConditionComplete, metav1.ConditionFalse, reason, message)
	v.again, v.done = 0, true
	v.warn(reason, message)
}

// clear ends the Diagnosis without any agent: there is no fault.
func (r *Reconciler) clear(v *visit, message string) {
	now := metav1.NewTime(r.Clock.Now())
	s := &v.is.Status
	s.Phase, s.Outcome, s.CompletionTime = v1.DiagnosisSucceeded, v1.OutcomeNoFault, &now
	if s.StartTime == nil {
		s.StartTime = &now
	}
	v.sum(message)
	r.set(v, v1.ConditionAccepted, metav1.ConditionFalse, v1.ReasonPodNotScheduled, message)
	r.set(v, v1.ConditionComplete, metav1.ConditionTrue, v1.ReasonComplete, "Diagnosis is completed")
	v.again, v.done = 0, true
	v.say(reasonSucceeded, message)
}

func (r *Reconciler) refuseNode(v *visit) {
	r.refuse(v, v1.ReasonNodeNotFound, fmt.Sprintf("spec.nodeName: Node %q does not exist", v.is.Spec.NodeName))
}

// wait says why no agent has taken the Diagnosis yet, and comes again.
func (r *Reconciler) wait(v *visit, reason, message string) {
	v.is.Status.Phase = v1.DiagnosisPending
	was := meta.FindStatusCondition(v.was.Status.Conditions, v1.ConditionAccepted)
	if was == nil || was.Reason != reason {
		v.warn(reason, message)
	}
	r.set(v, v1.ConditionAccepted, metav1.ConditionFalse, reason, message)
	v.sum(message)
	v.again = r.backoff(meta.FindStatusCondition(v.is.Status.Conditions, v1.ConditionAccepted).LastTransitionTime)
	v.done = true
}

// lose says that the progress of the Diagnosis is unknown.
func (r *Reconciler) lose(v *visit, message string) {
	if v.was.Status.Phase != v1.DiagnosisUnknown {
		v.warn(v1.ReasonAgentLost, message)
	}
	v.is.Status.Phase = v1.DiagnosisUnknown
	r.set(v, v1.ConditionComplete, metav1.ConditionUnknown, v1.ReasonAgentLost, message)
	v.sum(message)
	v.again = r.backoff(meta.FindStatusCondition(v.is.Status.Conditions, v1.ConditionComplete).LastTransitionTime)
}

// resume takes back what wait and lose have said of an agent that is alive.
func (r *Reconciler) resume(v *visit) {
	s := &v.is.Status
	if c := meta.FindStatusCondition(s.Conditions, v1.ConditionAccepted); c != nil && c.Reason == v1.ReasonNoAgent {
		meta.RemoveStatusCondition(&s.Conditions, v1.ConditionAccepted)
		s.Summary = ""
	}
	if c := meta.FindStatusCondition(s.Conditions, v1.ConditionComplete); c != nil && c.Reason == v1.ReasonAgentLost {
		meta.RemoveStatusCondition(&s.Conditions, v1.ConditionComplete)
		s.Summary = ""
	}
	if s.Phase == v1.DiagnosisUnknown {
		s.Phase = v1.DiagnosisRunning
		v.say(reasonAgentBack, fmt.Sprintf("Agent on node %s is back", v.is.Spec.NodeName))
	}
}

// sum says in the status what the Diagnosis is about, and what has come of it so far.
func (v *visit) sum(message string) {
	s := &v.is.Status
	s.Target, s.Summary = v.is.Spec.Target(), printable.Clip(message, v1.MaxSummaryBytes)
}

func (r *Reconciler) set(v *visit, condition string, status metav1.ConditionStatus, reason, message string) {
	c := metav1.Condition{
		Type: condition, Status: status, Reason: reason, Message: message,
		ObservedGeneration: v.is.Generation, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	}
	meta.SetStatusCondition(&v.is.Status.Conditions, c)
}
