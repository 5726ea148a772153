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

// Options are the details of an approval beside the plan.
type Options struct {
	// PlanHash is the plan that was looked at. Empty: that of the Diagnosis.
	PlanHash string
	// Approver is the name of the user as the API server knows it. Empty: it is not said.
	Approver string
	// Expiration is for how long the approval counts, in whole seconds. 0: an hour.
	Expiration time.Duration
}

// For returns the approval of the plan of a Diagnosis. The error wraps ErrNotWaiting if the Diagnosis does not wait for
// one, and says why.
func For(diagnosis *v1.Diagnosis, options Options) (*v1.RecoveryApproval, error) {
	name := diagnosis.Namespace + "/" + diagnosis.Name
	waiting := diagnosis.Status.Approval
	switch {
	case diagnosis.Spec.Mode != v1.ModeApprove:
		return nil, fmt.Errorf("%w: %s has not mode Approve", ErrNotWaiting, name)
	case diagnosis.Ended():
		return nil, fmt.Errorf("%w: %s has ended: %s", ErrNotWaiting, name, diagnosis.Status.Summary)
	case waiting == nil:
		return nil, fmt.Errorf("%w: %s has no plan yet", ErrNotWaiting, name)
	case waiting.ApproveTime != nil:
		return nil, fmt.Errorf("%w: RecoveryApproval %s has approved the plan of %s", ErrNotWaiting, waiting.Name, name)
	case options.PlanHash != "" && options.PlanHash != waiting.PlanHash:
		return nil, fmt.Errorf("%w: %s waits with plan %s, and not with %s", ErrNotWaiting, name, waiting.PlanHash, options.PlanHash)
	}
	approval := &v1.RecoveryApproval{}
	approval.APIVersion, approval.Kind = v1.GroupVersion.String(), "RecoveryApproval"
	approval.Namespace, approval.GenerateName = diagnosis.Namespace, diagnosis.Name[:min(len(diagnosis.Name), maxPrefix)]+"-"
	approval.Spec = v1.RecoveryApprovalSpec{
		Diagnosis: v1.ApprovedDiagnosis{Name: diagnosis.Name, UID: diagnosis.UID}, PlanHash: waiting.PlanHash, Approver: options.Approver,
	}
	if options.Expiration != 0 {
		seconds := int32(options.Expiration / time.Second)
		if seconds < 1 || seconds > v1.MaxApprovalExpirationSeconds {
			return nil, fmt.Errorf("expiration %s: must be between 1s and %s", options.Expiration,
				time.Duration(v1.MaxApprovalExpirationSeconds)*time.Second)
		}
		approval.Spec.ExpirationSeconds = &seconds
	}
	return approval, nil
}

// maxPrefix leaves room for the suffix that the API server adds to a name.
const maxPrefix = 200
