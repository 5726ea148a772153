// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"cmp"
	"fmt"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
)

// verdict is what is to be done about an approval.
type verdict struct {
	// state is Refused, or empty as long as it may still be used.
	state   v1.ApprovalState
	message string
	// deliver is set if the agent is to look at it.
	deliver bool
}

func refused(format string, args ...any) verdict {
	return verdict{state: v1.ApprovalRefused, message: fmt.Sprintf(format, args...)}
}

// verdictOn says what is to be done about an approval that is not settled. d is nil if there is no such Diagnosis.
func verdictOn(a *v1.RecoveryApproval, d *v1.Diagnosis, now time.Time) verdict {
	name := a.Namespace + "/" + a.Spec.Diagnosis.Name
	switch expires := a.Expires(); {
	case !now.Before(expires):
		return refused("it was not used before it expired at %s", stamp(expires))
	case d == nil:
		return verdict{message: fmt.Sprintf("Diagnosis %s does not exist yet", name)}
	case a.Spec.Diagnosis.UID != "" && a.Spec.Diagnosis.UID != d.UID:
		return refused("spec.diagnosis.uid: Diagnosis %s has UID %s", name, d.UID)
	case !ownedBy(a, d):
		return refused("it belongs to an earlier Diagnosis of the name %s", name)
	case !d.DeletionTimestamp.IsZero():
		return refused("Diagnosis %s is being deleted", name)
	case d.Spec.Mode != v1.ModeApprove:
		return refused("Diagnosis %s has mode %s, and only one with mode Approve waits for an approval", name, cmp.Or(d.Spec.Mode, v1.ModeRecover))
	case d.Status.Phase == v1.DiagnosisSucceeded || d.Status.Phase == v1.DiagnosisFailed:
		return refused("it came too late: Diagnosis %s has ended", name)
	}
	waiting := d.Status.Approval
	switch {
	case waiting == nil:
		return verdict{message: fmt.Sprintf("Diagnosis %s has no plan yet", name)}
	case a.Spec.PlanHash != waiting.PlanHash:
		return refused("it approves another plan: that of Diagnosis %s has hash %s", name, waiting.PlanHash)
	case waiting.ApproveTime != nil && waiting.Name != a.Name:
		return refused("RecoveryApproval %s has approved the plan before", waiting.Name)
	case !a.CreationTimestamp.Time.Before(waiting.ExpirationTime.Time):
		return refused("it came too late: the plan waited until %s", stamp(waiting.ExpirationTime.Time))
	}
	return verdict{deliver: true}
}

// ownedBy reports whether an approval belongs to the Diagnosis, or to none yet.
func ownedBy(a *v1.RecoveryApproval, d *v1.Diagnosis) bool {
	owners := ownersOf(a)
	for _, uid := range owners {
		if uid == d.UID {
			return true
		}
	}
	return len(owners) == 0
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
