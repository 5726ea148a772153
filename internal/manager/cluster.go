// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

// cacheOptions keep what the controllers look at and nothing else.
func cacheOptions() cache.Options {
	return cache.Options{
		ByObject: map[client.Object]cache.ByObject{
			&v1.Diagnosis{}:  {Transform: stripDiagnosis},
			&v1.MountFault{}: {Transform: stripMountFault},
		},
	}
}

// stripMountFault keeps of a MountFault what is counted and selected by, and none of its texts.
func stripMountFault(object any) (any, error) {
	f, ok := object.(*v1.MountFault)
	if !ok {
		return object, nil // a tombstone
	}
	f.ManagedFields, f.Annotations = nil, nil
	f.Status.Summary, f.Status.Plan, f.Status.Holder, f.Status.Evidence, f.Status.Commands = "", "", "", nil, nil
	if f.Status.Recovery != nil {
		f.Status.Recovery.Message = ""
	}
	return f, nil
}

// stripDiagnosis keeps of a Diagnosis what binding, watching over and deleting need: its results can be half a
// megabyte. The manager writes by patches of single fields, so what is not here is not touched.
func stripDiagnosis(object any) (any, error) {
	diagnosis, ok := object.(*v1.Diagnosis)
	if !ok {
		return object, nil // a tombstone
	}
	diagnosis.ManagedFields = nil
	approval, named := diagnosis.Annotations[v1.AnnotationApproval]
	if diagnosis.Annotations = nil; named {
		diagnosis.Annotations = map[string]string{v1.AnnotationApproval: approval}
	}
	diagnosis.Status = v1.DiagnosisStatus{
		Phase: diagnosis.Status.Phase, Outcome: diagnosis.Status.Outcome, Conditions: diagnosis.Status.Conditions,
		Target: diagnosis.Status.Target, Summary: diagnosis.Status.Summary,
		StartTime: diagnosis.Status.StartTime, CompletionTime: diagnosis.Status.CompletionTime, Approval: diagnosis.Status.Approval,
	}
	if diagnosis.Ended() {
		diagnosis.Spec.Parameters, diagnosis.Status.Conditions, diagnosis.Status.Target, diagnosis.Status.Summary = nil, nil, "", ""
	}
	return diagnosis, nil
}
