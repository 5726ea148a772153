// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package approval makes the RecoveryApproval of a Diagnosis that waits for one. It creates nothing in the API: the
// approver does, with rights of their own.
package approval

import (
	"errors"
	"fmt"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
)

// ErrNotWaiting is the error for a Diagnosis that waits for no approval.
var ErrNotWaiting = errors.New("diagnosis waits for no approval")

// Options are what an approval says beside the plan.
type Options struct {
	// PlanHash is the plan that was looked at. Empty: that of the Diagnosis.
	PlanHash string
	// Approver is the name of the user as the API server knows it. Empty: it is not said.
	Approver string
	// Expiration is for how long the approval counts, in whole seconds. 0: an hour.
	Expiration time.Duration
}

// For returns the approval of the plan of a Diagnosis. The error wraps ErrNotWaiting if the Diagnosis does not wait for one, and
// says why.
func For(d *v1.Diagnosis, o Options) (*v1.RecoveryApproval, error) {
	name := d.Namespace + "/" + d.Name
	waiting := d.Status.Approval
	switch {
	case d.Spec.Mode != v1.ModeApprove:
		return nil, fmt.Errorf("%w: %s has not mode Approve", ErrNotWaiting, name)
	case d.Status.Phase == v1.DiagnosisSucceeded || d.Status.Phase == v1.DiagnosisFailed:
		return nil, fmt.Errorf("%w: %s has ended: %s", ErrNotWaiting, name, d.Status.Summary)
	case waiting == nil:
		return nil, fmt.Errorf("%w: %s has no plan yet", ErrNotWaiting, name)
	case waiting.ApproveTime != nil:
		return nil, fmt.Errorf("%w: RecoveryApproval %s has approved the plan of %s", ErrNotWaiting, waiting.Name, name)
	case o.PlanHash != "" && o.PlanHash != waiting.PlanHash:
		return nil, fmt.Errorf("%w: %s waits with plan %s, and not with %s", ErrNotWaiting, name, waiting.PlanHash, o.PlanHash)
	}
	a := &v1.RecoveryApproval{}
	a.APIVersion, a.Kind = v1.GroupVersion.String(), "RecoveryApproval"
	a.Namespace, a.GenerateName = d.Namespace, namePrefix(d.Name)
	a.Spec = v1.RecoveryApprovalSpec{
		Diagnosis: v1.ApprovedDiagnosis{Name: d.Name, UID: d.UID}, PlanHash: waiting.PlanHash, Approver: o.Approver,
	}
	if o.Expiration != 0 {
		seconds := int32(o.Expiration / time.Second)
		if seconds < 1 || seconds > v1.MaxApprovalExpirationSeconds {
			return nil, fmt.Errorf("expiration %s: must be between 1s and %s", o.Expiration, time.Duration(v1.MaxApprovalExpirationSeconds)*time.Second)
		}
		a.Spec.ExpirationSeconds = &seconds
	}
	return a, nil
}

// maxPrefix leaves room for what the API server adds to a name.
const maxPrefix = 200

func namePrefix(diagnosis string) string {
	if len(diagnosis) > maxPrefix {
		diagnosis = diagnosis[:maxPrefix]
	}
	return diagnosis + "-"
}
