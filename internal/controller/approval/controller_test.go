// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

var (
	now      = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	planHash = strings.Repeat("0a", 32)
)

// waitingDiagnosis is a Diagnosis that waits for the approval of its plan.
func waitingDiagnosis() *v1.Diagnosis {
	diagnosis := &v1.Diagnosis{}
	diagnosis.Namespace, diagnosis.Name, diagnosis.UID = "team", "d", "d-uid"
	diagnosis.Spec.Mode, diagnosis.Spec.NodeName = v1.ModeApprove, "n1"
	diagnosis.Status.Phase = v1.DiagnosisRunning
	diagnosis.Status.Approval = &v1.ApprovalStatus{
		PlanHash: planHash, RequestTime: metav1.NewTime(now.Add(-time.Hour)), ExpirationTime: metav1.NewTime(now.Add(time.Hour)),
	}
	return diagnosis
}

// givenApproval is an approval of its plan, some minutes old.
func givenApproval(name string) *v1.RecoveryApproval {
	a := &v1.RecoveryApproval{}
	a.Namespace, a.Name, a.UID = "team", name, types.UID(name)
	a.CreationTimestamp = metav1.NewTime(now.Add(-5 * time.Minute))
	a.Spec = v1.RecoveryApprovalSpec{Diagnosis: v1.ApprovedDiagnosis{Name: "d"}, PlanHash: planHash}
	return a
}

// approvalScene is an API server with a reconciler.
type approvalScene struct {
	client.Client
	r      *Reconciler
	clock  *testclock.FakeClock
	events *record.FakeRecorder
}

func newApprovalScene(t *testing.T, objects ...client.Object) *approvalScene {
	t.Helper()
	c := kubeclienttest.Builder(t).WithObjects(objects...).
		WithStatusSubresource(&v1.Diagnosis{}, &v1.RecoveryApproval{}).Build()
	s := &approvalScene{Client: c, clock: testclock.NewFakeClock(now), events: record.NewFakeRecorder(10)}
	s.r = &Reconciler{Client: c, Events: s.events, Clock: s.clock}
	return s
}

// reconcileOnce reconciles one approval, and returns it with its Diagnosis as they are then.
func (s *approvalScene) reconcileOnce(t *testing.T, name string) (*v1.RecoveryApproval, *v1.Diagnosis, reconcile.Result) {
	t.Helper()
	key := client.ObjectKey{Namespace: "team", Name: name}
	result, err := s.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	must(t, err)
	approval, diagnosis := &v1.RecoveryApproval{}, &v1.Diagnosis{}
	must(t, s.Get(t.Context(), key, approval))
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "d"}, diagnosis); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return approval, diagnosis, result
}

// TestDelivered: the approval belongs to the Diagnosis, which names it, and a second visit writes nothing.
func TestDelivered(t *testing.T) {
	t.Parallel()
	s := newApprovalScene(t, waitingDiagnosis(), givenApproval("yes"))
	approval, diagnosis, result := s.reconcileOnce(t, "yes")
	if approval.Status.State != v1.ApprovalPending || diagnosis.Annotations[v1.AnnotationApproval] != "yes" || result.RequeueAfter != 55*time.Minute {
		t.Errorf("status %+v, annotations %v, %+v", approval.Status, diagnosis.Annotations, result)
	}
	if len(approval.OwnerReferences) != 1 || approval.OwnerReferences[0].UID != diagnosis.UID || approval.OwnerReferences[0].Controller != nil {
		t.Errorf("owners %+v", approval.OwnerReferences)
	}
	again, same, _ := s.reconcileOnce(t, "yes")
	if again.ResourceVersion != approval.ResourceVersion || same.ResourceVersion != diagnosis.ResourceVersion {
		t.Error("a second visit has written")
	}
	if len(s.events.Events) > 0 {
		t.Errorf("event %q", <-s.events.Events)
	}
}

// TestRefused: an approval that can allow nothing is refused with the reason, and the Diagnosis stays as it is.
func TestRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(a *v1.RecoveryApproval, d *v1.Diagnosis)
		why    string
	}{
		"another plan": {func(a *v1.RecoveryApproval, _ *v1.Diagnosis) { a.Spec.PlanHash = strings.Repeat("0b", 32) }, "it approves another plan: that of Diagnosis team/d has hash " + planHash},
		"late":         {func(a *v1.RecoveryApproval, _ *v1.Diagnosis) { a.CreationTimestamp.Time = now.Add(-2 * time.Hour) }, "it was not used before it expired at"},
		"after the wait": {func(_ *v1.RecoveryApproval, d *v1.Diagnosis) {
			d.Status.Approval.ExpirationTime.Time = now.Add(-time.Hour)
		}, "it came too late: the plan waited until"},
		"after the end":  {func(_ *v1.RecoveryApproval, d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisFailed }, "it came too late: Diagnosis team/d has ended"},
		"not to approve": {func(_ *v1.RecoveryApproval, d *v1.Diagnosis) { d.Spec.Mode = "" }, "Diagnosis team/d has mode Recover"},
		"an earlier one": {func(a *v1.RecoveryApproval, _ *v1.Diagnosis) { a.Spec.Diagnosis.UID = "before" }, "spec.diagnosis.uid: Diagnosis team/d has UID d-uid"},
		"approved already": {func(_ *v1.RecoveryApproval, d *v1.Diagnosis) {
			d.Status.Approval.Name, d.Status.Approval.ApproveTime = "first", &metav1.Time{Time: now}
		}, "RecoveryApproval first has approved the plan before"},
		"belongs to another": {func(a *v1.RecoveryApproval, _ *v1.Diagnosis) {
			a.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Diagnosis", Name: "d", UID: "before"}}
		}, "it belongs to an earlier Diagnosis"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, diagnosis := givenApproval("yes"), waitingDiagnosis()
			tc.change(a, diagnosis)
			s := newApprovalScene(t, a, diagnosis)
			a, diagnosis, _ = s.reconcileOnce(t, "yes")
			if a.Status.State != v1.ApprovalRefused || !strings.HasPrefix(a.Status.Message, tc.why) || a.Status.Time == nil {
				t.Errorf("status %+v, want %q", a.Status, tc.why)
			}
			if diagnosis.Annotations[v1.AnnotationApproval] != "" {
				t.Error("it was delivered")
			}
			if event := <-s.events.Events; !strings.HasPrefix(event, "Warning ApprovalRefused RecoveryApproval yes was refused: ") {
				t.Errorf("event %q", event)
			}
		})
	}
}

// TestBeforeThePlan: an approval may come before the plan, and before the Diagnosis.
func TestBeforeThePlan(t *testing.T) {
	t.Parallel()
	s := newApprovalScene(t, givenApproval("yes"))
	if a, _, _ := s.reconcileOnce(t, "yes"); a.Status.State != v1.ApprovalPending || a.Status.Message != "Diagnosis team/d does not exist yet" {
		t.Errorf("status %+v", a.Status)
	}
	diagnosis := waitingDiagnosis()
	approval := diagnosis.Status.Approval
	diagnosis.Status.Approval = nil
	must(t, s.Create(t.Context(), diagnosis))
	a, diagnosis, _ := s.reconcileOnce(t, "yes")
	if a.Status.Message != "Diagnosis team/d has no plan yet" || len(a.OwnerReferences) != 1 {
		t.Errorf("status %+v, owners %v", a.Status, a.OwnerReferences)
	}
	diagnosis.Status.Approval = approval
	must(t, s.Status().Update(t.Context(), diagnosis))
	if _, diagnosis, _ = s.reconcileOnce(t, "yes"); diagnosis.Annotations[v1.AnnotationApproval] != "yes" {
		t.Errorf("annotations %v", diagnosis.Annotations)
	}
}

// TestSecondApproval waits behind the first, and takes its place when that has expired.
func TestSecondApproval(t *testing.T) {
	t.Parallel()
	first, second := givenApproval("first"), givenApproval("second")
	first.Spec.ExpirationSeconds = new(int32(600))
	s := newApprovalScene(t, waitingDiagnosis(), first, second)
	s.reconcileOnce(t, "first")
	a, diagnosis, _ := s.reconcileOnce(t, "second")
	if !strings.HasPrefix(a.Status.Message, "RecoveryApproval first approves the same plan") || diagnosis.Annotations[v1.AnnotationApproval] != "first" {
		t.Errorf("status %+v, annotations %v", a.Status, diagnosis.Annotations)
	}
	s.clock.Step(6 * time.Minute)
	if a, _, _ := s.reconcileOnce(t, "first"); a.Status.State != v1.ApprovalRefused {
		t.Errorf("the first: %+v", a.Status)
	}
	if _, diagnosis, _ = s.reconcileOnce(t, "second"); diagnosis.Annotations[v1.AnnotationApproval] != "second" {
		t.Errorf("annotations %v", diagnosis.Annotations)
	}
}

// TestApprovalOfAnotherIsNoEarlierOne: a user who may update the Diagnosis can name any approval in it. An approval of another Diagnosis
// does not count, also if its plan is the same.
func TestApprovalOfAnotherIsNoEarlierOne(t *testing.T) {
	t.Parallel()
	other, d := givenApproval("other"), waitingDiagnosis()
	other.Spec.Diagnosis.Name = "e"
	d.Annotations = map[string]string{v1.AnnotationApproval: "other"}
	s := newApprovalScene(t, d, other, givenApproval("yes"))
	if a, diagnosis, _ := s.reconcileOnce(t, "yes"); diagnosis.Annotations[v1.AnnotationApproval] != "yes" {
		t.Errorf("status %+v, annotations %v", a.Status, diagnosis.Annotations)
	}
}

// TestUnownedAreDeleted a day after they have expired; those of a Diagnosis go with it.
func TestUnownedAreDeleted(t *testing.T) {
	t.Parallel()
	s := newApprovalScene(t, givenApproval("yes"))
	s.clock.Step(time.Hour)
	approval, _, _ := s.reconcileOnce(t, "yes")
	if approval.Status.State != v1.ApprovalRefused {
		t.Fatalf("status %+v", approval.Status)
	}
	if _, _, result := s.reconcileOnce(t, "yes"); result.RequeueAfter != 23*time.Hour+55*time.Minute {
		t.Errorf("%+v", result)
	}
	s.clock.Step(24 * time.Hour)
	key := client.ObjectKeyFromObject(approval)
	if _, err := s.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	if err := s.Get(t.Context(), key, approval); !apierrors.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
}

var must = kerneltest.Must
