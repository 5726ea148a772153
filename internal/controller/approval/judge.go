// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/printable"
)

// approvalVerdict is the decision about an approval.
type approvalVerdict struct {
	// state is Refused, or empty as long as it may still be used.
	state   v1.ApprovalState
	message string
	// deliverToAgent is set if the agent is to read the approval.
	deliverToAgent bool
}

func refusedVerdict(format string, args ...any) approvalVerdict {
	return approvalVerdict{state: v1.ApprovalRefused, message: fmt.Sprintf(format, args...)}
}

// judgeApproval decides about an approval that is not settled. diagnosis is nil if it does not exist.
func judgeApproval(approval *v1.RecoveryApproval, diagnosis *v1.Diagnosis, now time.Time) approvalVerdict {
	name, owners := approval.Namespace+"/"+approval.Spec.Diagnosis.Name, approval.Owners()
	switch expires := approval.Expires(); {
	case !now.Before(expires):
		return refusedVerdict("it was not used before it expired at %s", printable.Time(expires))
	case diagnosis == nil:
		return approvalVerdict{message: fmt.Sprintf("Diagnosis %s does not exist yet", name)}
	case approval.Spec.Diagnosis.UID != "" && approval.Spec.Diagnosis.UID != diagnosis.UID:
		return refusedVerdict("spec.diagnosis.uid: Diagnosis %s has UID %s", name, diagnosis.UID)
	case len(owners) > 0 && !slices.Contains(owners, diagnosis.UID):
		return refusedVerdict("it belongs to an earlier Diagnosis of the name %s", name)
	case !diagnosis.DeletionTimestamp.IsZero():
		return refusedVerdict("Diagnosis %s is being deleted", name)
	case diagnosis.Spec.Mode != v1.ModeApprove:
		return refusedVerdict("Diagnosis %s has mode %s, and only one with mode Approve waits for an approval", name,
			cmp.Or(diagnosis.Spec.Mode, v1.ModeRecover))
	case diagnosis.Ended():
		return refusedVerdict("it came too late: Diagnosis %s has ended", name)
	}
	waiting := diagnosis.Status.Approval
	switch {
	case waiting == nil:
		return approvalVerdict{message: fmt.Sprintf("Diagnosis %s has no plan yet", name)}
	case approval.Spec.PlanHash != waiting.PlanHash:
		return refusedVerdict("it approves another plan: that of Diagnosis %s has hash %s", name, waiting.PlanHash)
	case waiting.ApproveTime != nil && waiting.Name != approval.Name:
		return refusedVerdict("RecoveryApproval %s has approved the plan before", waiting.Name)
	case !approval.CreationTimestamp.Time.Before(waiting.ExpirationTime.Time):
		return refusedVerdict("it came too late: the plan waited until %s", printable.Time(waiting.ExpirationTime.Time))
	}
	return approvalVerdict{deliverToAgent: true}
}
