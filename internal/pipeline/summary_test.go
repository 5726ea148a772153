// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"strings"
	"testing"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
)

// TestSummaryKeepsTheNextStep: names and causes of any length cut neither the code nor the sentence that says what to do.
func TestSummaryKeepsTheNextStep(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("/a-long-directory-字", 60)
	held := &terminalError{reason: v1.ReasonRepairHeld, message: "operation auto-recover (node 2) may not repair now: held by policy: policy " +
		strings.Repeat("p", 250) + " is paused because of " + long + ". Next: set spec.paused of RecoveryPolicy pause to false, and create another Diagnosis"}
	for _, entry := range fault.Known() {
		for _, size := range []int{0, 1, 40, 250} {
			name := strings.Repeat("n", size)
			d := &v1.Diagnosis{Status: v1.DiagnosisStatus{Outcome: v1.OutcomeFaultFound, Faults: []v1.Fault{
				{Code: string(entry.Code), State: v1.FaultPresent, Container: name, Volume: name, Pod: &v1.FaultPod{Namespace: name, Name: name}},
			}}}
			for _, message := range []string{
				"it is not repaired because " + long + ". Next: " + entry.Next,
				"first " + long + ". Next: " + entry.Next + "; second " + long + ". Next: something else; and 7 more",
				"short. Next: " + entry.Next,
			} {
				r := report{Operations: []operationRun{{}}}
				r.last().Message = message
				got := summary(d, r, nil)
				if len(got) > v1.MaxSummaryBytes || !strings.Contains(got, "Next: "+entry.Next) || !strings.HasPrefix(got, "Found, and not repaired: "+string(entry.Code)) {
					t.Errorf("%s, names of %d bytes: %d bytes: %q", entry.Code, size, len(got), got)
				}
			}
			got := summary(d, report{}, held)
			if len(got) > v1.MaxSummaryBytes || !strings.HasSuffix(got, "Next: set spec.paused of RecoveryPolicy pause to false, and create another Diagnosis") {
				t.Errorf("%s, held: %d bytes: %q", entry.Code, len(got), got)
			}
		}
	}
}

// TestSummaryOfManyActions: what could be lost by a plan does not push out its hash.
func TestSummaryOfManyActions(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("ab", 32)
	d := &v1.Diagnosis{Status: v1.DiagnosisStatus{Outcome: v1.OutcomePlanned, Plan: &v1.Plan{Hash: hash, Actions: 300, Loss: []string{strings.Repeat("the data of a pod, ", 60)}},
		Faults: []v1.Fault{{Code: "HungMount", State: v1.FaultPresent, Volume: strings.Repeat("v", 250)}}}}
	if got := summary(d, report{Planned: true}, nil); len(got) > v1.MaxSummaryBytes || !strings.Contains(got, "create a Diagnosis with planHash "+hash) {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}
