// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/sentinel"
)

// operation is the name of the sentinel in the status of a record. No Operation has it.
const operation = "sentinel"

// name returns the name of the next record of a code. No other record has it, of this node or of another.
func (r *Recorder) name(code fault.Code, now time.Time) string {
	r.made++
	node := sha256.Sum256([]byte(r.Node))
	return fmt.Sprintf("sentinel-%s-%s-%s-%s", strings.ToLower(string(code)), hex.EncodeToString(node[:5]),
		strconv.FormatInt(now.UnixNano(), 36), strconv.Itoa(r.made))
}

// record returns the Diagnosis of one repair, or of all repairs that share it: the fault, the plan, the decision, the calls and the proof.
func (r *Recorder) record(name string, f *fold) *v1.Diagnosis {
	diagnosis := &v1.Diagnosis{}
	diagnosis.APIVersion, diagnosis.Kind = v1.GroupVersion.String(), "Diagnosis"
	diagnosis.Namespace, diagnosis.Name = r.Namespace, name
	diagnosis.Labels = map[string]string{v1.LabelNode: v1.NodeLabelValue(r.Node), v1.LabelOrigin: v1.OriginSentinel}
	diagnosis.Spec = v1.DiagnosisSpec{OperationSet: v1.DefaultOperationSet, Mode: v1.ModeRecord, NodeName: r.Node}
	if about := f.last.Fault; f.repeats.Count <= 1 && about.Pod.Namespace != "" && about.Pod.Name != "" {
		diagnosis.Spec.PodReference = &v1.PodReference{Namespace: about.Pod.Namespace, Name: about.Pod.Name, Container: about.Container}
	}
	last, failed := f.last, f.repeats.Failed > 0 || f.last.Err != nil
	decision, found := f.decision, last.Fault
	found.Healed = last.Err == nil
	text := fmt.Sprintf("Repaired %s on its own (%s): %s", found.Code, target(last), last.Proof)
	switch n := f.repeats; {
	case n.Count > 1:
		text = fmt.Sprintf("Repaired %s %d times on its own, and %d of these failed; first %s, last %s", found.Code, n.Count, n.Failed, n.FirstTarget, n.LastTarget)
	case last.Err != nil:
		text = fmt.Sprintf("Could not repair %s on its own (%s): %v", found.Code, target(last), last.Err)
	}
	began, ended := metav1.NewTime(f.first.Ended), metav1.NewTime(last.Ended)
	status := v1.DiagnosisStatus{
		Phase: v1.DiagnosisSucceeded, Outcome: v1.OutcomeHealed, Target: diagnosis.Spec.Target(), Summary: printable.Clip(text, v1.MaxSummaryBytes),
		Plan: pipeline.NewPlan(operation, r.Boot, []fault.Action{last.Action}), Decision: &decision, StartTime: &began, CompletionTime: &ended, Operations: []v1.OperationRun{runOf(last)}, Faults: pipeline.Faults([]fault.Finding{found}),
	}
	if f.repeats.Count > 1 {
		repeats := f.repeats
		status.Repeats = &repeats
	}
	complete := metav1.ConditionTrue
	if failed {
		status.Phase, status.Outcome, complete = v1.DiagnosisFailed, v1.OutcomeFaultFound, metav1.ConditionFalse
	}
	status.Conditions = []metav1.Condition{
		{Type: v1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1.ReasonRecorded, Message: "The sentinel on node " + r.Node + " has repaired this on its own"},
		{Type: v1.ConditionComplete, Status: complete, Reason: v1.ReasonRecorded, Message: status.Summary},
	}
	for i := range status.Conditions {
		status.Conditions[i].LastTransitionTime = ended
	}
	diagnosis.Status = status
	printable.Fields(&diagnosis.Status)
	return diagnosis
}

// runOf returns a repair as an operation of a pipeline.
func runOf(r sentinel.Repair) v1.OperationRun {
	ended := &metav1.MicroTime{Time: r.Ended}
	a := pipeline.NewAction(r.Action)
	a.Phase, a.Message = v1.ActionDone, r.Proof
	for _, c := range r.Calls {
		a.Calls = append(a.Calls, v1.ActionCall(c))
	}
	o := v1.OperationRun{
		ID: 1, Operation: operation, Phase: v1.OperationSucceeded, Attempts: 1, StartTime: ended, CompletionTime: ended, Message: r.Proof,
	}
	if r.Err != nil {
		a.Phase, a.Message = v1.ActionFailed, r.Err.Error()
		o.Phase, o.Reason, o.Message = v1.OperationFailed, pipeline.ReasonFailed, r.Err.Error()
	}
	o.Actions = []v1.Action{a}
	return o
}

// target names the object of a repair for people.
func target(r sentinel.Repair) string {
	f := r.Fault
	text := r.Action.Target
	if f.Volume != "" {
		text = "volume " + f.Volume
	}
	if f.Container != "" {
		text = "container " + f.Container + ", " + text
	}
	if f.Pod.Name != "" {
		text += ", pod " + f.Pod.Namespace + "/" + f.Pod.Name
	}
	return printable.Clip(text, calls.MaxBytes)
}
