// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
)

// recoveryOf has a plan for each container of a workload with n stale binds.
func recoveryOf(n int) *recovery {
	report := reportOf(faultsOfOneCause(n, false), scanCoverage{})
	r := &recovery{view: scanView{report: report}}
	var all []*scanFault
	for i := range report.Faults {
		all = append(all, &report.Faults[i])
	}
	for _, t := range targetsOf(all) {
		var actions []v1.Action
		for _, f := range t.faults {
			a := unmountOf(v1.ActionPlanned)
			a.Target, a.Safety = f.Mount.Point, "the root of the mount at "+f.Mount.Point+" is deleted"
			actions = append(actions, a)
		}
		actions = append(actions, v1.Action{Kind: string(fault.RemoveContainerRecord), Target: "record of " + t.faults[0].Pod.Name, Loss: "the number of restarts"})
		t.plan = diagnosisOf(actions...)
		r.targets = append(r.targets, t)
	}
	return r
}

// TestAPlanOfManyBindsIsShort: 300 binds of one workload are one paragraph, with the losses and the containers that go on
// running, and one line of results. Each bind is in the details.
func TestAPlanOfManyBindsIsShort(t *testing.T) {
	t.Parallel()
	for _, width := range []int{0, 80} {
		r := recoveryOf(300)
		r.view.Width = width
		text := r.planText(false)
		flat := strings.Join(strings.Fields(text), " ")
		for _, part := range []string{
			"1. StaleSubPath shop/web ×100, volume nginx-conf: 300 faults", "each: replace this one bind with the file that the subPath names now",
			"would replace 300 mounts", "would remove the record of 300 containers", "lost: nothing; the number of restarts",
		} {
			if !strings.Contains(flat, part) {
				t.Errorf("width %d: %q is not in %s", width, part, text)
			}
		}
		if n := strings.Count(text, "\n"); n > 8 || !r.isFolded() {
			t.Errorf("width %d: %d lines, folded %t:\n%s", width, n, r.isFolded(), text)
		}
		details := r.planText(true)
		for i := range 300 {
			if !strings.Contains(strings.Join(strings.Fields(details), " "), fmt.Sprintf("would replace /k/%d ", i)) {
				t.Errorf("width %d: bind %d is not in the details", width, i)
			}
		}
		for i, target := range r.targets {
			target.progress, target.reason = progressHealed, fmt.Sprintf("its containers have started after %d s", i)
		}
		if got := r.resultText(); strings.Count(got, "300 faults: healed: ") != 1 || strings.Count(got, "\n") > 5 || !strings.Contains(got, "300 of 300 faults healed.") {
			t.Errorf("width %d: results %s", width, got)
		}
	}
}

// TestTheNameInTheTableSelectsTheRow that it stands in.
func TestTheNameInTheTableSelectsTheRow(t *testing.T) {
	t.Parallel()
	r := reportOf(faultsOfOneCause(300, false), scanCoverage{})
	for name, want := range map[string]int{"shop/web": 300, "web": 0, "shop/web-7d9f8b6c5-00001": 3, "shop/we": 0, "other/web": 0} {
		n := 0
		for i := range r.Faults {
			if r.Faults[i].hasName(name) {
				n++
			}
		}
		if n != want {
			t.Errorf("%q selects %d faults, want %d", name, n, want)
		}
	}
}

// TestRecoverKeepsTheNumbersOfTheScan that the person has read, though it sees fewer faults without the specs of pods.
func TestRecoverKeepsTheNumbersOfTheScan(t *testing.T) {
	t.Parallel()
	missing := fault.Finding{Code: fault.MissingBindSource, Pod: fault.Pod{Namespace: "a", Name: "badhost", UID: "u"}, Volume: "v"}
	binds := faultsOfOneCause(3, false)
	scan, now, more := reportOf(append(binds, missing), scanCoverage{}), reportOf(binds, scanCoverage{}), reportOf(append(binds, missing), scanCoverage{})
	want := scan.byKey()
	if scan.Faults[0].Code != fault.MissingBindSource || now.Faults[0].Place != 1 {
		t.Fatalf("first %s, %d", scan.Faults[0].Code, now.Faults[0].Place)
	}
	if !now.keepNumbers(scan) {
		t.Fatal("the numbers are not kept")
	}
	for i := range now.Faults {
		if f := &now.Faults[i]; f.Place != 2 || want[f.key()].Place != 2 {
			t.Errorf("%s has number %d, and %d in the scan", f.Code, f.Place, want[f.key()].Place)
		}
	}
	elsewhere := reportOf(binds, scanCoverage{Kubelet: scannedKubelet{Root: "/other"}})
	if more.keepNumbers(reportOf(binds, scanCoverage{})) || elsewhere.keepNumbers(scan) || reportOf(nil, scanCoverage{}).keepNumbers(scan) || elsewhere.Faults[0].Place != 1 {
		t.Error("numbers of another look are kept")
	}
}

// TestFewFaultsAreNamed: a plan for a few faults names each, and each result.
func TestFewFaultsAreNamed(t *testing.T) {
	t.Parallel()
	r := recoveryOf(maxFaultLines)
	text := r.planText(false)
	for i := range maxFaultLines {
		if !strings.Contains(text, fmt.Sprintf("container c%d, volume nginx-conf\n", i)) || !strings.Contains(text, fmt.Sprintf("would replace /k/%d (mount", i)) {
			t.Errorf("fault %d is not named in %s", i, text)
		}
	}
	if r.isFolded() {
		t.Error("there are details")
	}
	r.targets[0].progress, r.targets[0].reason = progressFailed, "busy"
	r.targets[1].progress, r.targets[2].progress = progressHealed, progressHealed
	if got := r.resultText(); !strings.Contains(got, "container c0, volume nginx-conf: failed because busy. Next: ") || !strings.Contains(got, "2 of 3 faults healed.") {
		t.Errorf("results %s", got)
	}
}
