// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"maps"
	"strings"
	"testing"

	v1 "kubediag.org/kubediag/api/v1"
)

// under has the processes of a world run in a boot of that name.
func (w *world) under(boot string) {
	before := w.options
	w.options = func(o *Options) {
		if before != nil {
			before(o)
		}
		o.Boot = boot
	}
}

// dieAtApply runs a Diagnosis in a process that ends when its first action is announced, and returns it as it is stored.
func (w *world) dieAtApply(t *testing.T, d *v1.Diagnosis) *v1.Diagnosis {
	t.Helper()
	e := w.start(t)
	e.hook = func(before bool, r record) {
		if r.Kind == kindApply && !before {
			panic(death{})
		}
	}
	func() {
		defer func() {
			if p := recover(); p != (death{}) {
				t.Fatalf("%v, want that the process ends", p)
			}
		}()
		_, _ = e.Run(t.Context(), d)
	}()
	must(t, e.Close())
	return w.last(d)
}

// TestRebootPlansAgain: the kernel numbers mounts from the start of each boot, so those of a plan are others after it.
func TestRebootPlansAgain(t *testing.T) {
	t.Parallel()
	for boot, plans := range map[string]int{"first": 1, "second": 2} {
		t.Run(boot, func(t *testing.T) {
			t.Parallel()
			w, d := newWorld(t), diagnosis()
			w.under("first")
			d = w.dieAtApply(t, d)
			w.under(boot)
			for range 2 { // the second time from the journal
				got, err := w.try(t, d)
				made := w.steps[3].Family.(*unmounter).plans
				if err != nil || got.Status.Outcome != v1.OutcomeHealed || !maps.Equal(w.kernel.effects, map[uint64]int{7: 1, 8: 1}) || made != plans {
					t.Errorf("error %v, outcome %q, effects %v, %d plans, want %d", err, got.Status.Outcome, w.kernel.effects, made, plans)
				}
			}
		})
	}
}

// TestNoPlanOutlivesABoot: an agreed plan is not carried out after a reboot, though mounts have the same numbers again.
func TestNoPlanOutlivesABoot(t *testing.T) {
	t.Parallel()
	planned := func(t *testing.T, w *world) (hash string) {
		p := diagnosis()
		p.UID, p.Spec.Mode = "planned", v1.ModePlan
		p, err := w.try(t, p)
		if err != nil || p.Status.Plan == nil {
			t.Fatalf("error %v, plan %+v", err, p.Status.Plan)
		}
		return p.Status.Plan.Hash
	}
	for name, c := range map[string]struct {
		before func(t *testing.T, w *world, k *fakeApprovals, d *v1.Diagnosis) *v1.Diagnosis
		why    string
	}{
		"a plan for a Diagnosis that begins later": {func(t *testing.T, w *world, _ *fakeApprovals, d *v1.Diagnosis) *v1.Diagnosis {
			d.Spec.Mode, d.Spec.PlanHash = v1.ModeRecover, planned(t, w)
			return d
		}, "nothing was changed: the plan has hash "},
		"a plan under way": {func(t *testing.T, w *world, _ *fakeApprovals, d *v1.Diagnosis) *v1.Diagnosis {
			d.Spec.Mode, d.Spec.PlanHash = v1.ModeRecover, planned(t, w)
			return w.dieAtApply(t, d)
		}, "0 of 2 actions are known to be done: plan HASH was made, and the node has rebooted since"},
		"an approval that was not taken": {func(t *testing.T, w *world, k *fakeApprovals, d *v1.Diagnosis) *v1.Diagnosis {
			d = w.awaits(t, d)
			k.given = approvalOf(d)
			return d
		}, "nothing was changed: plan HASH was approved, and the node has rebooted since"},
		"an approval that was taken": {func(t *testing.T, w *world, k *fakeApprovals, d *v1.Diagnosis) *v1.Diagnosis {
			d = w.awaits(t, d)
			k.given = approvalOf(d)
			return w.dieAtApply(t, d)
		}, "0 of 2 actions are known to be done: plan HASH was approved, and the node has rebooted since"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, k, d := approvable(t)
			w.under("first")
			d = c.before(t, w, k, d)
			w.under("second")
			d, err := w.try(t, d)
			if err != nil || d.Status.Phase != v1.DiagnosisFailed || len(w.kernel.effects) > 0 {
				t.Errorf("error %v, phase %q, effects %v", err, d.Status.Phase, w.kernel.effects)
			}
			last := d.Status.Conditions[len(d.Status.Conditions)-1]
			want := strings.Replace(c.why, "HASH", d.Spec.PlanHash, 1)
			if a := d.Status.Approval; a != nil {
				want = strings.Replace(c.why, "HASH", a.PlanHash, 1)
			}
			if last.Reason != v1.ReasonPlanChanged || !strings.HasPrefix(last.Message, want) {
				t.Errorf("condition %+v, want %q", last, want)
			}
			if k.given != nil && !k.given.Settled() {
				t.Error("the approval waits still")
			}
		})
	}
}
