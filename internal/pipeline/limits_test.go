// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/processor"
)

// TestResultsLeaveRoomForALargeObject: what has no room in the status is kept on the node, and the status says where.
func TestResultsLeaveRoomForALargeObject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	long := strings.Repeat("x", 200<<10)
	w.put(chain("pod-detail-collector", "mount-info-collector"))
	w.replace(returns(processor.Result{Values: map[string]string{"first": long}}, nil).as("podDetailCollector"))
	w.replace(returns(processor.Result{Values: map[string]string{"second": long}}, nil).as("mountInfoCollector"))
	d := diagnosis()
	d.Labels = map[string]string{} // of which the API server takes as many as fit
	for i := range 6000 {
		d.Labels[fmt.Sprintf("%063d/%060d", i, i)] = ""
	}
	s := w.run(t, d).Status
	results := s.OperationResults
	if results["first"] != long || !strings.Contains(results["second"], "[cut: 204800 bytes in all, kept whole on node") {
		t.Errorf("%d and %d bytes", len(results["first"]), len(results["second"]))
	}
	if len(s.Artifacts) != 1 || s.Artifacts[0].Key != "second" || size(results) > statusLimit(d)/2+100 {
		t.Errorf("%d bytes of %d, artifacts %+v", size(results), statusLimit(d), s.Artifacts)
	}
}

// TestShrinkStatus keeps the first of everything, however small the status has to become.
func TestShrinkStatus(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(s *v1.DiagnosisStatus){
		"faults":      func(s *v1.DiagnosisStatus) { s.Faults = make([]v1.Fault, 100_000) },
		"evidence":    func(s *v1.DiagnosisStatus) { s.Faults[0].Evidence = make([]string, 1_000_000) },
		"a long fact": func(s *v1.DiagnosisStatus) { s.Faults[0].Evidence = []string{strings.Repeat("<", 1<<20)} },
		"actions":     func(s *v1.DiagnosisStatus) { s.Operations[0].Actions = make([]v1.Action, 100_000) },
		"artifacts":   func(s *v1.DiagnosisStatus) { s.Artifacts = make([]v1.Artifact, 100_000) },
		"paths": func(s *v1.DiagnosisStatus) {
			s.FailedPaths = slices.Repeat([]v1.Path{make(v1.Path, graph.MaxNodes)}, v1.MaxListedPaths)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := diagnosis()
			d.Status = v1.DiagnosisStatus{
				Operations: []v1.OperationRun{{Message: "m", Actions: make([]v1.Action, 1)}}, Faults: make([]v1.Fault, 1), Artifacts: make([]v1.Artifact, 1),
				OperationResults: map[string]string{"a": strings.Repeat("x", v1.MaxResultsBytes)},
			}
			change(&d.Status)
			shrinkStatus(d)
			if got := size(&d.Status); got > statusLimit(d) {
				t.Errorf("%d bytes, at most %d", got, statusLimit(d))
			}
			s := d.Status
			if len(s.Operations) != 1 || len(s.Operations[0].Actions) == 0 || len(s.Faults) == 0 || len(s.Artifacts) == 0 || len(s.OperationResults) != 1 {
				t.Errorf("%d operations, %d faults, %d artifacts, %d results", len(s.Operations), len(s.Faults), len(s.Artifacts), len(s.OperationResults))
			}
		})
	}
}

// TestOneNamespaceTakesNotAllRoom: where not all faults have room, that of another namespace is kept, in the journal and in the status.
func TestOneNamespaceTakesNotAllRoom(t *testing.T) {
	t.Parallel()
	var findings []fault.Finding
	for i := range 3000 {
		findings = append(findings, fault.Finding{
			Code: fault.HungMount, Pod: fault.Pod{Namespace: "greedy", Name: "p", UID: "g"}, Volume: fmt.Sprint(i),
			Mount: fault.Mount{Point: fmt.Sprint("/greedy/", i)}, Evidence: []string{strings.Repeat("e", 500)},
		})
	}
	victim := fault.Finding{Code: fault.HungMount, Pod: fault.Pod{Namespace: "victim", Name: "p", UID: "v"}, Mount: fault.Mount{Point: "/victim"}}
	findings = append(findings, victim)
	kept, left := fitFindings(findings, 1<<20)
	if size(kept) > 1<<20 || left == 0 || len(kept)+left != len(findings) {
		t.Errorf("%d findings of %d bytes are kept, %d are left out of %d", len(kept), size(kept), left, len(findings))
	}
	ofVictim := func(f fault.Finding) bool { return f.Pod.Namespace == "victim" }
	if !slices.ContainsFunc(kept, ofVictim) {
		t.Error("that of the other namespace is left out")
	}
	d := diagnosis()
	d.Status.Faults = Faults(findings)
	shrinkStatus(d)
	if !slices.ContainsFunc(d.Status.Faults, func(f v1.Fault) bool { return f.Pod.Namespace == "victim" }) {
		t.Errorf("it is not among the %d faults of the status", len(d.Status.Faults))
	}
}
