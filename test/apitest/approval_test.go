// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package apitest_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

func newApproval(namespace string) *v1.RecoveryApproval {
	a := &v1.RecoveryApproval{}
	a.Namespace, a.GenerateName = namespace, "d-"
	a.Spec = v1.RecoveryApprovalSpec{Diagnosis: v1.ApprovedDiagnosis{Name: "d"}, PlanHash: strings.Repeat("0a", 32), Approver: "ann"}
	return a
}

// TestColumnsOfApprovals: they say whose plan is approved and what came of it.
func TestColumnsOfApprovals(t *testing.T) {
	for version, env := range servers(t) {
		t.Run(version, func(t *testing.T) {
			a := newApproval(env.Namespace(t))
			env.MustCreate(t, a)
			if a.Spec.ExpirationSeconds == nil || *a.Spec.ExpirationSeconds != v1.DefaultApprovalExpirationSeconds {
				t.Errorf("spec %+v", a.Spec)
			}
			before := a.DeepCopy()
			a.Status = v1.RecoveryApprovalStatus{State: v1.ApprovalRefused, Message: "it came too late"}
			must(t, env.Client.Status().Patch(t.Context(), a, client.MergeFrom(before)))
			cells, _ := columns(t, env, "namespaces/"+a.Namespace+"/recoveryapprovals")
			delete(cells, "Age")
			want := map[string]any{
				"Name": a.Name, "Diagnosis": "d", "State": "Refused", "Message": "it came too late", "Approver": "ann", "Plan": a.Spec.PlanHash,
			}
			if diff := cmp.Diff(want, cells); diff != "" {
				t.Errorf("columns (-want +got):\n%s", diff)
			}
		})
	}
}

// TestApprovalIsFixed: an approval does not become the approval of something else.
func TestApprovalIsFixed(t *testing.T) {
	env := apitest.Start(t)
	env.NeedRules(t)
	for name, change := range map[string]func(s *v1.RecoveryApprovalSpec){
		"plan":      func(s *v1.RecoveryApprovalSpec) { s.PlanHash = strings.Repeat("0b", 32) },
		"diagnosis": func(s *v1.RecoveryApprovalSpec) { s.Diagnosis.Name = "e" },
		"uid":       func(s *v1.RecoveryApprovalSpec) { s.Diagnosis.UID = "u" },
		"time":      func(s *v1.RecoveryApprovalSpec) { s.ExpirationSeconds = new(int32(86400)) },
		"approver":  func(s *v1.RecoveryApprovalSpec) { s.Approver = "" },
	} {
		t.Run(name, func(t *testing.T) {
			a := newApproval("default")
			env.MustCreate(t, a)
			change(&a.Spec)
			if err := env.Client.Update(t.Context(), a); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec cannot be changed") {
				t.Errorf("error = %v", err)
			}
		})
	}
}
