// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
)

// fakeApprovals is where one approval may lie.
type fakeApprovals struct {
	mu      sync.Mutex
	given   *v1.RecoveryApproval
	settled int
	fail    error // of Settle, once
}

func (k *fakeApprovals) Approval(context.Context, *v1.Diagnosis) (*v1.RecoveryApproval, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.given.DeepCopy(), nil
}

func (k *fakeApprovals) Settle(_ context.Context, a *v1.RecoveryApproval) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fail; err != nil {
		k.fail = nil
		return err
	}
	k.given = a.DeepCopy()
	k.settled++
	return nil
}

// approvable is a Diagnosis with mode Approve in a world that has them.
func approvable(t *testing.T) (*world, *fakeApprovals, *v1.Diagnosis) {
	t.Helper()
	w, k, d := newWorld(t), &fakeApprovals{}, diagnosis()
	w.options = func(o *Options) { o.Approvals = k }
	d.UID, d.Spec.Mode = "approvable", v1.ModeApprove
	return w, k, d
}

// try runs a Diagnosis in a process of its own, and returns it as the API server has it then.
func (w *world) try(t *testing.T, d *v1.Diagnosis) (*v1.Diagnosis, error) {
	t.Helper()
	e := w.start(t)
	got, err := e.Run(t.Context(), d)
	must(t, e.Close())
	if err == nil && len(w.saved) > 0 {
		got = w.last(d)
	}
	text, errText := json.Marshal(got)
	stored := &v1.Diagnosis{}
	must(t, errors.Join(errText, json.Unmarshal(text, stored)))
	return stored, err
}

// awaits runs a Diagnosis that must wait.
func (w *world) awaits(t *testing.T, d *v1.Diagnosis) *v1.Diagnosis {
	t.Helper()
	d, err := w.try(t, d)
	var waiting *WaitingError
	if !errors.As(err, &waiting) || !waiting.Until.Equal(d.Status.Approval.ExpirationTime.Time) {
		t.Fatalf("error %v, approval %+v", err, d.Status.Approval)
	}
	if len(w.kernel.effects) > 0 {
		t.Fatalf("something was changed without an approval: %v", w.kernel.effects)
	}
	return d
}

func approvalOf(d *v1.Diagnosis) *v1.RecoveryApproval {
	a := &v1.RecoveryApproval{ObjectMeta: metav1.ObjectMeta{
		Namespace: d.Namespace, Name: "yes", UID: "yes-uid", CreationTimestamp: metav1.Now(),
	}}
	a.Spec = v1.RecoveryApprovalSpec{Diagnosis: v1.ApprovedDiagnosis{Name: d.Name, UID: d.UID}, PlanHash: d.Status.Plan.Hash, Approver: "ann"}
	return a
}

// TestApproval waits over many restarts, writing once, and then does exactly the plan.
func TestApproval(t *testing.T) {
	t.Parallel()
	w, k, d := approvable(t)
	for range 2 * 10 { // an operation that the process ended ten times would fail
		d = w.awaits(t, d)
	}
	if len(w.saved) != 2 {
		t.Errorf("%d writes until it waits", len(w.saved))
	}
	s := d.Status
	c := meta.FindStatusCondition(s.Conditions, v1.ConditionApproved)
	want := "waits for approval of plan " + s.Plan.Hash + " until " + s.Approval.ExpirationTime.UTC().Format(time.RFC3339)
	if s.Phase != v1.DiagnosisRunning || s.Outcome != v1.OutcomeAwaitingApproval || !strings.HasSuffix(s.Summary, want) ||
		c.Status != metav1.ConditionFalse || c.Reason != v1.ReasonWaitingForApproval || c.Message != "Diagnosis "+want {
		t.Errorf("phase %q, outcome %q, summary %q, condition %+v", s.Phase, s.Outcome, s.Summary, c)
	}
	if until := s.Approval.ExpirationTime.Sub(s.Approval.RequestTime.Time); until != 24*time.Hour || s.Plan.Actions != 2 {
		t.Errorf("it waits for %s, plan %+v", until, s.Plan)
	}
	k.given = approvalOf(d)
	d, err := w.try(t, d)
	s = d.Status
	if err != nil || s.Outcome != v1.OutcomeHealed || !maps.Equal(w.kernel.effects, map[uint64]int{7: 1, 8: 1}) {
		t.Fatalf("error %v, outcome %q, effects %v", err, s.Outcome, w.kernel.effects)
	}
	if !meta.IsStatusConditionTrue(s.Conditions, v1.ConditionApproved) || s.Approval.Name != "yes" || s.Approval.Approver != "ann" ||
		s.Approval.ApproveTime == nil {
		t.Errorf("approval %+v", s.Approval)
	}
	if got := k.given.Status; got.State != v1.ApprovalUsed || got.DiagnosisUID != d.UID || got.Time == nil {
		t.Errorf("the approval says %+v", got)
	}
}

// TestUnusableApprovals leave the Diagnosis as it waits, and say why.
func TestUnusableApprovals(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(a *v1.RecoveryApproval)
		why    string
	}{
		"another plan":    {func(a *v1.RecoveryApproval) { a.Spec.PlanHash = strings.Repeat("0a", 32) }, "it approves another plan"},
		"late":            {func(a *v1.RecoveryApproval) { a.CreationTimestamp.Time = a.CreationTimestamp.Add(-2 * time.Hour) }, "it came too late: it expired"},
		"used by another": {func(a *v1.RecoveryApproval) { a.Status.State, a.Status.DiagnosisUID = v1.ApprovalUsed, "other" }, ""},
		"refused before":  {func(a *v1.RecoveryApproval) { a.Status.State, a.Status.Message = v1.ApprovalRefused, "no" }, "no"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, k, d := approvable(t)
			d = w.awaits(t, d)
			k.given = approvalOf(d)
			tc.change(k.given)
			final := k.given.Settled()
			w.awaits(t, d)
			if got := k.given.Status; (got.State == v1.ApprovalRefused) == (final && name == "used by another") || !strings.HasPrefix(got.Message, tc.why) {
				t.Errorf("the approval says %+v", got)
			}
			if len(w.saved) != 2 {
				t.Errorf("%d writes", len(w.saved))
			}
		})
	}
}

// TestApprovalsOfOthersAreLeftAlone: the annotation that names an approval is the user's. Only the Diagnosis that an approval is for
// settles it.
func TestApprovalsOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(a *v1.RecoveryApproval){
		"another Diagnosis": func(a *v1.RecoveryApproval) { a.Spec.Diagnosis.Name = "e" },
		"any of the name":   func(a *v1.RecoveryApproval) { a.Spec.Diagnosis.UID = "" }, // before the manager has made it belong to one
		"another namespace": func(a *v1.RecoveryApproval) { a.Namespace = "other" },
		"an earlier one":    func(a *v1.RecoveryApproval) { a.Spec.Diagnosis.UID = "before" },
		"of an earlier one": func(a *v1.RecoveryApproval) {
			a.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Diagnosis", Name: "d", UID: "before"}}
		},
		"expired": func(a *v1.RecoveryApproval) {
			a.Spec.Diagnosis.Name, a.CreationTimestamp.Time = "e", a.CreationTimestamp.Add(-2*time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, k, d := approvable(t)
			d = w.awaits(t, d)
			k.given = approvalOf(d)
			change(k.given)
			before := k.given.DeepCopy()
			w.awaits(t, d)
			if diff := cmp.Diff(before, k.given); diff != "" || k.settled != 0 {
				t.Errorf("settled %d times (-before +after):\n%s", k.settled, diff)
			}
			k.given = approvalOf(d)
			k.given.Spec.Diagnosis.UID = ""
			k.given.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Diagnosis", Name: "d", UID: d.UID}}
			if d, err := w.try(t, d); err != nil || d.Status.Outcome != v1.OutcomeHealed {
				t.Errorf("with an approval of its own: %v, %+v", err, d.Status)
			}
		})
	}
}

// TestNotApproved ends the Diagnosis when its time is up.
func TestNotApproved(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"never": false, "too late": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, k, d := approvable(t)
			d = w.awaits(t, d)
			d.Status.Approval.ExpirationTime.Time = time.Now().Add(-time.Second)
			if late {
				k.given = approvalOf(d)
			}
			d, err := w.try(t, d)
			c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete)
			if err != nil || d.Status.Phase != v1.DiagnosisFailed || d.Status.Outcome != v1.OutcomeFaultFound || len(w.kernel.effects) > 0 ||
				c.Reason != v1.ReasonApprovalExpired || !strings.HasPrefix(c.Message, "nothing was changed: plan ") {
				t.Errorf("error %v, phase %q, outcome %q, condition %+v", err, d.Status.Phase, d.Status.Outcome, c)
			}
			if late && (k.given.Status.State != v1.ApprovalRefused || !strings.Contains(k.given.Status.Message, "came too late")) {
				t.Errorf("the approval says %+v", k.given.Status)
			}
		})
	}
}

// TestApprovedPlanHasChanged: what was approved is not what would be done, so nothing is.
func TestApprovedPlanHasChanged(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mounts []uint64
		why    string
	}{
		"another mount": {[]uint64{7, 9}, "the plan has hash "},
		"a mount less":  {[]uint64{7}, "the plan has hash "},
		"nothing left":  {nil, "there is nothing to repair now: nothing is mounted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, k, d := approvable(t)
			d = w.awaits(t, d)
			k.given = approvalOf(d)
			w.kernel.mounts = tc.mounts
			d, err := w.try(t, d)
			c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete)
			if err != nil || d.Status.Phase != v1.DiagnosisFailed || c.Reason != v1.ReasonPlanChanged || len(w.kernel.effects) > 0 ||
				!strings.Contains(c.Message, tc.why) {
				t.Errorf("error %v, phase %q, condition %+v, effects %v", err, d.Status.Phase, c, w.kernel.effects)
			}
			if got := k.given.Status; got.State != v1.ApprovalRefused || !strings.Contains(got.Message, tc.why) {
				t.Errorf("the approval says %+v", got)
			}
		})
	}
}

// TestPlanChangesWhileItWaits: a plan that no approval can allow any more ends the Diagnosis. One that cannot be made now does not.
func TestPlanChangesWhileItWaits(t *testing.T) {
	t.Parallel()
	w, _, d := approvable(t)
	d = w.awaits(t, d)
	mounts := w.kernel.mounts
	w.kernel.mounts = nil
	d = w.awaits(t, d) // it is new
	d.Status.Approval.RequestTime.Time = time.Now().Add(-replanAfter)
	w.kernel.mounts = mounts
	d = w.awaits(t, d)
	w.kernel.mounts = nil
	d, err := w.try(t, d)
	c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete)
	if err != nil || d.Status.Phase != v1.DiagnosisFailed || c.Reason != v1.ReasonPlanChanged || len(w.kernel.effects) > 0 ||
		!strings.Contains(c.Message, "waited for approval, and there is nothing to repair now") {
		t.Errorf("error %v, phase %q, condition %+v, effects %v", err, d.Status.Phase, c, w.kernel.effects)
	}
}

// TestApprovalSurvivesCrashes: the process ends before and after the approval is taken, and the plan is carried out once.
func TestApprovalSurvivesCrashes(t *testing.T) {
	t.Parallel()
	w, k, d := approvable(t)
	d = w.awaits(t, d)
	k.given, k.fail = approvalOf(d), errBroken
	if _, err := w.try(t, d); !errors.Is(err, errBroken) || len(w.kernel.effects) > 0 {
		t.Fatalf("error %v, effects %v", err, w.kernel.effects)
	}
	saves := w.n
	w.fail = atCall(saves+1, errBroken) // the approval is taken, and the status is not stored
	if _, err := w.try(t, d); !errors.Is(err, errBroken) || len(w.kernel.effects) > 0 || k.given.Status.State != v1.ApprovalUsed {
		t.Fatalf("error %v, effects %v, approval %+v", err, w.kernel.effects, k.given.Status)
	}
	k.given.CreationTimestamp.Time = time.Now().Add(-2 * time.Hour) // it was in time when it was taken
	d, err := w.try(t, d)
	if err != nil || d.Status.Outcome != v1.OutcomeHealed || !maps.Equal(w.kernel.effects, map[uint64]int{7: 1, 8: 1}) || k.settled != 1 {
		t.Errorf("error %v, outcome %q, effects %v, settled %d times", err, d.Status.Outcome, w.kernel.effects, k.settled)
	}
}

// TestNothingToApprove: there is no approval without an API server, and a record is not run.
func TestNothingToApprove(t *testing.T) {
	t.Parallel()
	w, _, d := approvable(t)
	w.options = nil
	d = w.run(t, d)
	if c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete); c.Reason != v1.ReasonInvalid || len(w.kernel.effects) > 0 {
		t.Errorf("condition %+v", c)
	}
	d = diagnosis()
	d.UID, d.Spec.Mode = "record", v1.ModeRecord
	before := len(w.saved)
	if w.run(t, d); len(w.saved) != before || len(w.kernel.effects) > 0 {
		t.Error("a record was run")
	}
}
