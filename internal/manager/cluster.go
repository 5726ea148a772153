// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"crypto/sha256"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// pageSize is the number of objects in a page of a list: with the largest objects of the API server, a page has 48 megabytes.
const pageSize = 32

// cacheOptions keep only the fields that the controllers read.
func cacheOptions() cache.Options {
	return cache.Options{
		ByObject: map[client.Object]cache.ByObject{
			&v1.Diagnosis{}: {Transform: strip}, &v1.MountFault{}: {Transform: strip}, &v1.RecoveryApproval{}: {Transform: strip},
		},
		NewInformer: func(lw toolscache.ListerWatcher, of runtime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
			return toolscache.NewSharedIndexInformer(kubeclient.Pages(lw, pageSize, strip), of, resync, by)
		},
	}
}

// strip reduces an object of any kind that the manager lists.
func strip(object any) (any, error) {
	switch object.(type) {
	case *v1.Diagnosis:
		return stripDiagnosis(object)
	case *v1.MountFault:
		return stripMountFault(object)
	case *v1.RecoveryApproval:
		return stripApproval(object)
	}
	return cache.TransformStripManagedFields()(object)
}

// stripMountFault keeps the fields of a MountFault that count and select, without its texts.
func stripMountFault(object any) (any, error) {
	f, ok := object.(*v1.MountFault)
	if !ok {
		return object, nil // a tombstone
	}
	kubeclient.ReduceMetadata(&f.ObjectMeta)
	f.Status.Summary, f.Status.Plan, f.Status.Holder, f.Status.Evidence, f.Status.Commands = "", "", "", nil, nil
	if f.Status.Recovery != nil {
		f.Status.Recovery.Message = ""
	}
	return f, nil
}

// stripApproval keeps the permission and the owners of a RecoveryApproval.
func stripApproval(object any) (any, error) {
	if a, ok := object.(*v1.RecoveryApproval); ok { // else a tombstone
		kubeclient.ReduceMetadata(&a.ObjectMeta)
	}
	return object, nil
}

// stripDiagnosis keeps the fields of a Diagnosis for binding, watching over and deleting: its parameters and its results can be half a
// megabyte. The manager writes by patches of single fields, so the fields that are not here stay as they are.
func stripDiagnosis(object any) (any, error) {
	diagnosis, ok := object.(*v1.Diagnosis)
	if !ok {
		return object, nil // a tombstone
	}
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
	return diagnosis, nil
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
