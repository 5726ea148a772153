// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"crypto/sha256"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// pageSize is the number of objects in a page of a list: with the largest objects of the API server, a page has 48 megabytes.
const pageSize = 32

// strip reduces an object of any kind that the manager lists.
func strip(object any) (any, error) {
	switch o := object.(type) {
	case *v1.Diagnosis:
		stripDiagnosis(o)
		return o, nil
	case *v1.MountFault: // without its texts: its other fields count and select
		kubeclient.ReduceMetadata(&o.ObjectMeta)
		o.Status.Summary, o.Status.Plan, o.Status.Holder, o.Status.Evidence, o.Status.Commands = "", "", "", nil, nil
		if o.Status.Recovery != nil {
			o.Status.Recovery.Message = ""
		}
		return o, nil
	case *v1.RecoveryApproval: // the permission and the owners stay
		kubeclient.ReduceMetadata(&o.ObjectMeta)
		return o, nil
	}
	return cache.TransformStripManagedFields()(object)
}

// stripDiagnosis keeps the fields of a Diagnosis for binding, watching over and deleting: its parameters and its results can be half a
// megabyte. The manager writes by patches of single fields, so the fields that are not here stay as they are.
func stripDiagnosis(diagnosis *v1.Diagnosis) {
	kubeclient.ReduceMetadata(&diagnosis.ObjectMeta)
	diagnosis.Spec.Parameters = nil
	plan := diagnosis.Status.Plan
	diagnosis.Status = v1.DiagnosisStatus{
		Phase: diagnosis.Status.Phase, Outcome: diagnosis.Status.Outcome, Conditions: diagnosis.Status.Conditions,
		Target: diagnosis.Status.Target, Summary: diagnosis.Status.Summary,
		StartTime: diagnosis.Status.StartTime, CompletionTime: diagnosis.Status.CompletionTime, Approval: diagnosis.Status.Approval,
	}
	if _, ours := diagnosis.Labels[v1.LabelPlan]; ours && plan != nil && len(plan.Hash) <= 2*sha256.Size { // it is deleted once it was carried out
		diagnosis.Status.Plan = &v1.Plan{Hash: plan.Hash}
	}
	if s := &diagnosis.Status; diagnosis.Ended() || statusBytes(s) > maxStatusBytes {
		accepted := meta.FindStatusCondition(s.Conditions, v1.ConditionAccepted)
		s.Conditions, s.Target, s.Summary = nil, "", ""
		if accepted != nil { // limits on the number of Diagnoses of a node count those that an agent took
			s.Conditions = []metav1.Condition{{Type: accepted.Type, Status: accepted.Status}}
		}
		if statusBytes(s) > maxStatusBytes {
			s.Approval = nil
		}
	}
}

// maxStatusBytes is more than the agents and the manager write into the kept fields. A hostile agent may write more.
const maxStatusBytes = 32 << 10

// statusBytes is the length of the texts that are kept of a status.
func statusBytes(s *v1.DiagnosisStatus) int {
	bytes := len(s.Target) + len(s.Summary)
	for i := range s.Conditions {
		bytes += 128 + len(s.Conditions[i].Message)
	}
	if a := s.Approval; a != nil {
		bytes += len(a.PlanHash) + len(a.Name) + len(a.UID) + len(a.Approver)
	}
	return bytes
}
