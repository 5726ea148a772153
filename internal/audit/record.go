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
	"kubediag.org/kubediag/internal/executor"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/sentinel"
)

// operation is the name of what repaired, in the status of a record. No Operation has it.
const operation = "sentinel"

// name is the name of the next record of a code. No other record has it, of this node or of another.
func (r *Recorder) name(code fault.Code, now time.Time) string {
	r.made++
	node := sha256.Sum256([]byte(r.Node))
	return fmt.Sprintf("sentinel-%s-%s-%s-%s", strings.ToLower(string(code)), hex.EncodeToString(node[:5]),
		strconv.FormatInt(now.UnixNano(), 36), strconv.Itoa(r.made))
}

// record is the Diagnosis of one repair, or of all those that share it.
func (r *Recorder) record(name string, f *fold) *v1.Diagnosis {
	d := &v1.Diagnosis{}
	d.APIVersion, d.Kind = v1.GroupVersion.String(), "Diagnosis"
	d.Namespace, d.Name = r.Namespace, name
	d.Labels = map[string]string{v1.LabelNode: v1.NodeLabelValue(r.Node), v1.LabelOrigin: v1.OriginSentinel}
	d.Spec = v1.DiagnosisSpec{OperationSet: v1.DefaultOperationSet, Mode: v1.ModeRecord, NodeName: r.Node}
	last := f.last.Fault
	if f.repeats.Count <= 1 && last.Pod.Namespace != "" && last.Pod.Name != "" {
		d.Spec.PodReference = &v1.PodReference{Namespace: last.Pod.Namespace, Name: last.Pod.Name, Container: last.Container}
	}
	d.Status = r.status(f, d.Spec.Target())
	printable.Fields(&d.Status)
	return d
}

// status says what was seen, the plan, the decision, the calls and the proof.
func (r *Recorder) status(f *fold, about string) v1.DiagnosisStatus {
	last, failed := f.last, f.repeats.Failed > 0 || f.last.Err != nil
	run, plan, faults := executor.Written(runOf(last))
	decision := f.decision
	began, ended := metav1.NewTime(f.first.Ended), metav1.NewTime(last.Ended)
	s := v1.DiagnosisStatus{
		Phase: v1.DiagnosisSucceeded, Outcome: v1.OutcomeHealed, Target: about, Summary: printable.Cut(summary(f), v1.MaxSummaryBytes),
		Plan: plan, Decision: &decision, StartTime: &began, CompletionTime: &ended, Operations: []v1.OperationRun{run}, Faults: faults,
	}
	if f.repeats.Count > 1 {
		repeats := f.repeats
		s.Repeats = &repeats
	}
	complete := metav1.ConditionTrue
	if failed {
		s.Phase, s.Outcome, complete = v1.DiagnosisFailed, v1.OutcomeFaultFound, metav1.ConditionFalse
	}
	s.Conditions = []metav1.Condition{
		{Type: v1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1.ReasonRecorded, Message: "The sentinel on node " + r.Node + " has repaired this on its own"},
		{Type: v1.ConditionComplete, Status: complete, Reason: v1.ReasonRecorded, Message: s.Summary},
	}
	for i := range s.Conditions {
		s.Conditions[i].LastTransitionTime = ended
	}
	return s
}

// runOf is a repair as an operation of a pipeline.
func runOf(r sentinel.Repair) pipeline.OperationRun {
	found := r.Fault
	found.Healed = r.Err == nil
	a := pipeline.ActionRun{Action: r.Action, Phase: pipeline.Done, Message: r.Proof, Calls: r.Calls}
	o := pipeline.OperationRun{
		ID: 1, Operation: operation, Outcome: pipeline.Succeeded, Attempts: 1, Start: r.Ended, End: r.Ended, Message: r.Proof,
		Findings: []fault.Finding{found},
	}
	if r.Err != nil {
		a.Phase, a.Message = pipeline.ActionFailed, r.Err.Error()
		o.Outcome, o.Reason, o.Message = pipeline.Failed, pipeline.ReasonFailed, r.Err.Error()
	}
	o.Actions = []pipeline.ActionRun{a}
	return o
}

// summary says in one sentence what was repaired.
func summary(f *fold) string {
	r := f.last
	code := r.Fault.Code
	switch n := f.repeats; {
	case n.Count > 1:
		return fmt.Sprintf("Repaired %s %d times on its own, and %d of these failed; first %s, last %s", code, n.Count, n.Failed, n.FirstTarget, n.LastTarget)
	case r.Err != nil:
		return fmt.Sprintf("Could not repair %s on its own (%s): %v", code, target(r), r.Err)
	}
	return fmt.Sprintf("Repaired %s on its own (%s): %s", code, target(r), r.Proof)
}

// target is what was repaired, for people.
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
	return printable.Cut(text, calls.MaxBytes)
}
