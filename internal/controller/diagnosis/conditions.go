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

// refuseDiagnosis ends the Diagnosis: no event would change the answer.
func (r *Reconciler) refuseDiagnosis(scope *reconcileScope, reason, message string) {
	r.end(scope, v1.DiagnosisFailed, v1.OutcomeError, message)
	if !scope.before.Started() {
		r.setCondition(scope, v1.ConditionAccepted, metav1.ConditionFalse, reason, message)
	}
	r.setCondition(scope, v1.ConditionComplete, metav1.ConditionFalse, reason, message)
	scope.addWarning(reason, message)
}

// end ends the Diagnosis here: no agent gets it.
func (r *Reconciler) end(scope *reconcileScope, phase v1.DiagnosisPhase, outcome v1.Outcome, message string) {
	now := metav1.NewTime(r.Clock.Now())
	s := &scope.diagnosis.Status
	s.Phase, s.Outcome, s.CompletionTime = phase, outcome, &now
	if s.StartTime == nil {
		s.StartTime = &now
	}
	scope.setSummary(message)
	scope.requeueAfter, scope.isDone = 0, true
}

func (r *Reconciler) refuseNode(v *reconcileScope) {
	r.refuseDiagnosis(v, v1.ReasonNodeNotFound, fmt.Sprintf("spec.nodeName: Node %q does not exist", v.diagnosis.Spec.NodeName))
}

// markWaiting says why no agent has taken the Diagnosis yet, and has it reconciled again.
func (r *Reconciler) markWaiting(scope *reconcileScope, reason, message string) {
	scope.diagnosis.Status.Phase = v1.DiagnosisPending
	was := meta.FindStatusCondition(scope.before.Status.Conditions, v1.ConditionAccepted)
	if was == nil || was.Reason != reason {
		scope.addWarning(reason, message)
	}
	r.setCondition(scope, v1.ConditionAccepted, metav1.ConditionFalse, reason, message)
	scope.setSummary(message)
	scope.requeueAfter = r.waitBackoff(meta.FindStatusCondition(scope.diagnosis.Status.Conditions, v1.ConditionAccepted).LastTransitionTime)
	scope.isDone = true
}

// waitsForPlace reports whether the Diagnosis says that it waits for a place.
func waitsForPlace(d *v1.Diagnosis) bool {
	c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionAccepted)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1.ReasonNoPlace
}

// markBound notes that the Diagnosis has a place on its node. It no longer says why it waited.
func (r *Reconciler) markBound(scope *reconcileScope) {
	s := &scope.diagnosis.Status
	if meta.IsStatusConditionFalse(s.Conditions, v1.ConditionAccepted) {
		meta.RemoveStatusCondition(&s.Conditions, v1.ConditionAccepted)
		s.Summary = ""
	}
	r.setCondition(scope, v1.ConditionBound, metav1.ConditionTrue, v1.ReasonPlaceFound,
		fmt.Sprintf("Diagnosis has a place on node %s", scope.diagnosis.Spec.NodeName))
}

// setSummary sets the target of the Diagnosis and its result so far.
func (c *reconcileScope) setSummary(message string) {
	s := &c.diagnosis.Status
	s.Target, s.Summary = c.diagnosis.Spec.Target(), printable.ClipMiddle(message, v1.MaxSummaryBytes)
}

func (r *Reconciler) setCondition(v *reconcileScope, condition string, status metav1.ConditionStatus, reason, message string) {
	c := metav1.Condition{
		Type: condition, Status: status, Reason: reason, Message: message,
		ObservedGeneration: v.diagnosis.Generation, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	}
	meta.SetStatusCondition(&v.diagnosis.Status.Conditions, c)
}
