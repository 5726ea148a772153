// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
)

var hash = strings.Repeat("0a", 32)

func waiting() *v1.Diagnosis {
	d := &v1.Diagnosis{}
	d.Namespace, d.Name, d.UID = "team", "web", "web-uid"
	d.Spec.Mode = v1.ModeApprove
	d.Status.Phase = v1.DiagnosisRunning
	d.Status.Approval = &v1.ApprovalStatus{PlanHash: hash}
	return d
}

func TestFor(t *testing.T) {
	t.Parallel()
	a, err := For(waiting(), Options{PlanHash: hash, Approver: "ann", Expiration: 10 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	want := v1.RecoveryApprovalSpec{Diagnosis: v1.ApprovedDiagnosis{Name: "web", UID: "web-uid"}, PlanHash: hash, Approver: "ann"}
	got := a.Spec
	if got.ExpirationSeconds == nil || *got.ExpirationSeconds != 600 {
		t.Errorf("expiration %v", got.ExpirationSeconds)
	}
	if got.ExpirationSeconds = nil; got != want || a.Namespace != "team" || a.GenerateName != "web-" || a.Kind != "RecoveryApproval" {
		t.Errorf("approval %+v", a)
	}
	long := waiting()
	long.Name = strings.Repeat("x", 253)
	if a, err := For(long, Options{}); err != nil || len(a.GenerateName) > 248 || a.Spec.Diagnosis.Name != long.Name {
		t.Errorf("error %v, name %q", err, a.GenerateName)
	}
}

func TestNotWaiting(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(d *v1.Diagnosis, o *Options){
		"has not mode Approve": func(d *v1.Diagnosis, _ *Options) { d.Spec.Mode = v1.ModePlan },
		"has ended: done":      func(d *v1.Diagnosis, _ *Options) { d.Status.Phase, d.Status.Summary = v1.DiagnosisFailed, "done" },
		"has no plan yet":      func(d *v1.Diagnosis, _ *Options) { d.Status.Approval = nil },
		"RecoveryApproval yes has": func(d *v1.Diagnosis, _ *Options) {
			d.Status.Approval.Name, d.Status.Approval.ApproveTime = "yes", &metav1.Time{}
		},
		"waits with plan " + hash + ",": func(_ *v1.Diagnosis, o *Options) { o.PlanHash = strings.Repeat("0b", 32) },
	} {
		d, o := waiting(), Options{}
		change(d, &o)
		if _, err := For(d, o); !errors.Is(err, ErrNotWaiting) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := For(waiting(), Options{Expiration: 25 * time.Hour}); err == nil || errors.Is(err, ErrNotWaiting) {
		t.Errorf("error %v", err)
	}
}
