// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
)

// planOnly is a Diagnosis that may change nothing.
func planOnly() *v1.Diagnosis {
	d := diagnosis()
	d.UID, d.Spec.Mode = "only-planned", v1.ModePlan
	return d
}

// exactly is a Diagnosis that may carry out one plan.
func exactly(hash string) *v1.Diagnosis {
	d := diagnosis()
	d.UID, d.Spec.PlanHash = types.UID("exactly-"+hash[:8]), hash
	return d
}

// TestPlan changes nothing, and what it plans is what a Diagnosis that repairs does.
func TestPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.run(t, planOnly())
	s := d.Status
	if s.Phase != v1.DiagnosisSucceeded || s.Outcome != v1.OutcomePlanned || len(s.SucceededPath)+len(s.FailedPaths) > 0 {
		t.Errorf("phase %q, outcome %q, paths %v %v", s.Phase, s.Outcome, s.SucceededPath, s.FailedPaths)
	}
	if len(w.kernel.effects) > 0 || len(w.saved) != 2 {
		t.Errorf("effects %v, %d writes", w.kernel.effects, len(w.saved))
	}
	if s.Plan == nil || s.Plan.Actions != 2 || !s.Plan.Lossless || s.Plan.Operation != "subpath-remount-recover" || s.Plan.Loss != nil {
		t.Fatalf("plan %+v", s.Plan)
	}
	if len(s.Faults) != 2 || s.Faults[0].State != v1.FaultPresent {
		t.Errorf("faults %+v", s.Faults)
	}
	for _, part := range []string{"StaleSubPath", "2 actions", "planHash " + s.Plan.Hash, "nothing would be lost"} {
		if !strings.Contains(s.Summary, part) {
			t.Errorf("summary %q does not contain %q", s.Summary, part)
		}
	}
	actions := s.Operations[3].Actions
	if len(actions) != 2 || actions[0].Phase != v1.ActionPlanned {
		t.Fatalf("actions %+v", actions)
	}

	healed := w.run(t, exactly(s.Plan.Hash))
	if healed.Status.Outcome != v1.OutcomeHealed || !maps.Equal(w.kernel.effects, map[uint64]int{7: 1, 8: 1}) {
		t.Errorf("with the hash: %q, effects %v", healed.Status.Outcome, w.kernel.effects)
	}
	if diff := cmp.Diff(s.Plan, healed.Status.Plan); diff != "" {
		t.Errorf("plans (-planned +done):\n%s", diff)
	}
}

// TestAnotherPlanIsRefused, and the status has the one that it is now.
func TestAnotherPlanIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *world, hash string) string{
		"a wrong hash":   func(*world, string) string { return strings.Repeat("0a", 32) },
		"one more mount": func(w *world, hash string) string { w.kernel.mounts = append(w.kernel.mounts, 9); return hash },
		"one mount less": func(w *world, hash string) string { w.kernel.mounts = w.kernel.mounts[:1]; return hash },
		"another mount":  func(w *world, hash string) string { w.kernel.mounts[0] = 6; return hash },
		"another order":  func(w *world, hash string) string { slices.Reverse(w.kernel.mounts); return hash },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			before := w.run(t, planOnly()).Status.Plan.Hash
			want := change(w, before)
			s := w.run(t, exactly(want)).Status
			c := meta.FindStatusCondition(s.Conditions, v1.ConditionComplete)
			if s.Phase != v1.DiagnosisFailed || s.Outcome != v1.OutcomeFaultFound || c.Reason != v1.ReasonPlanChanged || len(w.kernel.effects) > 0 {
				t.Errorf("phase %q, outcome %q, condition %+v, effects %v", s.Phase, s.Outcome, c, w.kernel.effects)
			}
			if !strings.Contains(c.Message, s.Plan.Hash) || !strings.Contains(c.Message, want) || s.Plan.Hash == want {
				t.Errorf("message %q with plan %+v", c.Message, s.Plan)
			}
			if last := s.Operations[len(s.Operations)-1]; last.Reason != v1.ReasonPlanChanged || last.Actions[0].Phase != v1.ActionPlanned {
				t.Errorf("operation %+v", last)
			}
		})
	}
}

// TestNothingLeftOfAPlan: what is named has gone by itself.
func TestNothingLeftOfAPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hash := w.run(t, planOnly()).Status.Plan.Hash
	w.kernel.mounts = nil
	s := w.run(t, exactly(hash)).Status
	if s.Plan != nil || len(w.kernel.effects) > 0 || s.Outcome == v1.OutcomeHealed {
		t.Errorf("outcome %q, plan %+v", s.Outcome, s.Plan)
	}
}

// TestOthersAreNotRunForAPlan: a server or a script may change what no plan shows.
func TestOthersAreNotRunForAPlan(t *testing.T) {
	t.Parallel()
	for _, d := range []*v1.Diagnosis{planOnly(), exactly(strings.Repeat("0a", 32))} {
		w := newWorld(t)
		address := "127.0.0.1"
		w.operations["pod-detail-collector"].Spec.Processor.ExternalAddress = &address
		s := w.run(t, d).Status
		c := meta.FindStatusCondition(s.Conditions, v1.ConditionComplete)
		if c.Reason != v1.ReasonOperationInvalid || !strings.Contains(c.Message, "only built-in processors") || len(s.Operations) > 0 {
			t.Errorf("condition %+v, operations %+v", c, s.Operations)
		}
	}
}

// TestPlanHash is that of what is changed, and of nothing that is said about it.
func TestPlanHash(t *testing.T) {
	t.Parallel()
	plan := func(change func(a []fault.Action) []fault.Action) string {
		key := fault.Key{Code: fault.StaleSubPath, PodUID: "u", Container: "c", Volume: "config", Place: "/m"}
		actions := []fault.Action{
			{Kind: fault.Unmount, Mount: &fault.Mount{ID: 7, Point: "/m"}, For: []fault.Key{key}},
			{Kind: fault.RemoveContainerRecord, Record: "r1", Container: "c", For: []fault.Key{key}},
			{Kind: fault.Evict, Pod: &fault.Pod{Namespace: "n", Name: "p", UID: "u"}},
		}
		return planHash("b", change(actions))
	}
	same := plan(func(a []fault.Action) []fault.Action { return a })
	for name, tc := range map[string]struct {
		change func(a []fault.Action) []fault.Action
		same   bool
	}{
		"sentences": {func(a []fault.Action) []fault.Action {
			for i := range a {
				a[i].Target, a[i].Safety, a[i].Loss, a[i].Lossless = "other", "words", "than", true
			}
			return a
		}, true},
		"another mount of the fault": {func(a []fault.Action) []fault.Action {
			a[1].For = append(a[1].For, a[1].For[0])
			a[1].For[1].Place = "/n"
			return a
		}, true},
		"a volume":       {func(a []fault.Action) []fault.Action { a[0].For[0].Volume = "data"; return a }, false},
		"another record": {func(a []fault.Action) []fault.Action { a[1].Record = "r2"; return a }, true},
		"more records":   {func(a []fault.Action) []fault.Action { return slices.Insert(a, 1, a[1], a[1]) }, true},
		"names of a pod": {func(a []fault.Action) []fault.Action { a[2].Pod.Name = "q"; return a }, true},
		"a pod":          {func(a []fault.Action) []fault.Action { a[2].Pod.UID = "v"; return a }, false},
		"a mount":        {func(a []fault.Action) []fault.Action { a[0].Mount.ID = 8; return a }, false},
		"a place":        {func(a []fault.Action) []fault.Action { a[0].Mount.Point = "/n"; return a }, false},
		"a container":    {func(a []fault.Action) []fault.Action { a[1].Container = "d"; return a }, false},
		"a kind":         {func(a []fault.Action) []fault.Action { a[0].Kind = fault.Replace; return a }, false},
		"a device": {func(a []fault.Action) []fault.Action {
			a[0].Device = &fault.Device{Name: "rbd0", Sequence: 1}
			return a
		}, false},
		"a file": {func(a []fault.Action) []fault.Action {
			a[0].File = &fault.File{Path: "/f", Inode: 1}
			return a
		}, false},
		"a fault": {func(a []fault.Action) []fault.Action { a[0].For[0].Code = fault.HeldDevice; return a }, false},
		"order":   {func(a []fault.Action) []fault.Action { slices.Reverse(a); return a }, false},
		"less":    {func(a []fault.Action) []fault.Action { return a[1:] }, false},
	} {
		if got := plan(tc.change); (got == same) != tc.same || len(got) != 64 {
			t.Errorf("%s: hash %s, want the same as %s: %v", name, got, same, tc.same)
		}
	}
}

// TestPlanListsItsChanges within the bounds of the status, and another change gives other lines.
func TestPlanListsItsChanges(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"one": 1, "as many as fit": v1.MaxPlanChanges - 1, "too many": 500} {
		seen := map[string]bool{}
		for _, last := range []string{"/a", "/b", strings.Repeat("x\n", 2000), strings.Repeat("x\n", 2001)} {
			actions := make([]fault.Action, n)
			for i := range actions {
				actions[i] = fault.Action{Kind: fault.Unmount, Mount: &fault.Mount{ID: uint64(i), Point: last}}
			}
			p := NewPlan("o", "b", actions)
			if v1.PlanHash(p.Changes) != p.Hash || seen[strings.Join(p.Changes, "\n")] || len(p.Changes) > v1.MaxPlanChanges || p.Changes[0] != `boot "b"` {
				t.Errorf("%s: %d lines, hash %s, first %q", name, len(p.Changes), p.Hash, p.Changes[0])
			}
			for _, line := range p.Changes {
				if len(line) > v1.MaxPlanChangeBytes || strings.Contains(line, "\n") {
					t.Errorf("%s: %d bytes: %q", name, len(line), line)
				}
			}
			seen[strings.Join(p.Changes, "\n")] = true
		}
	}
}

// TestSummary is one sentence about each end.
func TestSummary(t *testing.T) {
	t.Parallel()
	refused := processor.Stalled(errBroken)
	for name, tc := range map[string]struct {
		steps []Step
		want  string
	}{
		"no fault":           {[]Step{returns(processor.Result{NotApplicable: "not stale"}, nil).as("subpathRemountDiagnoser")}, "No fault was found: operation subpath-remount-diagnoser (node 3) is not applicable: not stale"},
		"all was looked for": {[]Step{returns(processor.Result{NoFault: true, Message: "It is\nnot a mount."}, nil).as("subpathRemountDiagnoser"), returns(processor.Result{}, nil).as("unmounter")}, "It is not a mount."},
		"no search":          {[]Step{returns(processor.Result{}, nil).as("subpathRemountDiagnoser"), returns(processor.Result{}, nil).as("unmounter")}, "OperationSet set has succeeded"},
		"failed": {[]Step{fails(refused).as("subpathRemountDiagnoser")},
			"operation subpath-remount-diagnoser (node 3) failed after 1 attempt: broken"},
		"left alone": {[]Step{returns(processor.Result{Message: "ask a person"}, nil).as("unmounter")},
			"Found, and not repaired: StaleSubPath (container c, volume v, pod default/p) and 1 more: ask a person"},
		"gone": {[]Step{{Family: &unmounter{kernel: newKernel(7, 8), already: true}}},
			"Gone without a repair: StaleSubPath (container c, volume v, pod default/p) and 1 more"},
		"gone between": {[]Step{{Family: &unmounter{kernel: newKernel()}}},
			"The fault that was found has gone without a repair: operation subpath-remount-recover (node 4) is not applicable: nothing is mounted"},
		"gone between two operations that succeed": {[]Step{returns(processor.Result{Message: "whole", Gone: []fault.Absence{{Code: "StaleSubPath"}}}, nil).as("unmounter")},
			"The fault that was found has gone without a repair: whole"},
		"half": {[]Step{returns(processor.Result{Findings: []fault.Finding{stale(8, true)}}, nil).as("unmounter")},
			"Repaired StaleSubPath (container c, volume v, pod default/p). Found, and not repaired: StaleSubPath (container c, volume v, pod default/p)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, s := range tc.steps {
				w.replace(s)
			}
			d := w.run(t, diagnosis())
			if d.Status.Summary != tc.want || d.Status.Target != "pod default/p" {
				t.Errorf("summary %q of %q, want %q", d.Status.Summary, d.Status.Target, tc.want)
			}
			wantOutcome := map[string]v1.Outcome{"gone between": v1.OutcomeNoFault, "gone between two operations that succeed": v1.OutcomeNoFault, "no fault": v1.OutcomeNoFault, "all was looked for": v1.OutcomeNoFault, "no search": v1.OutcomeCompleted}
			if want := wantOutcome[name]; want != "" && d.Status.Outcome != want {
				t.Errorf("outcome %q, want %q", d.Status.Outcome, want)
			}
		})
	}
}

// TestVolatileFiles: without files on the disk a plan is the same, and none is carried out.
func TestVolatileFiles(t *testing.T) {
	t.Parallel()
	plans := map[bool]*v1.Plan{}
	for _, volatile := range []bool{false, true} {
		w := newWorld(t)
		w.options = func(o *Options) { o.Volatile = volatile }
		plans[volatile] = w.run(t, planOnly()).Status.Plan
		_, err := w.start(t).Run(t.Context(), diagnosis())
		if errors.Is(err, errVolatile) != volatile || (len(w.kernel.effects) > 0) == volatile {
			t.Errorf("volatile %v: a repair ends with %v, effects %v", volatile, err, w.kernel.effects)
		}
	}
	if diff := cmp.Diff(plans[false], plans[true]); diff != "" || plans[true] == nil {
		t.Errorf("plans (-on the disk +volatile):\n%s", diff)
	}
}
