// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// ConditionBound is true if the manager has given the Diagnosis a place on its node. No agent begins it before that.
	ConditionBound = "Bound"
	// ReasonPlaceFound is its reason: the namespace and the node had room for one more Diagnosis.
	ReasonPlaceFound = "PlaceFound"
)

// Ended reports whether the phase is final.
func (d *Diagnosis) Ended() bool {
	return d.Status.Phase == DiagnosisSucceeded || d.Status.Phase == DiagnosisFailed
}

// Started reports whether an agent has begun the Diagnosis.
func (d *Diagnosis) Started() bool { return d.Status.Phase != "" && d.Status.Phase != DiagnosisPending }

// HasPlace reports whether the Diagnosis has a place on its node: it has been begun there, or the manager has given it one, with the spec that
// it has now. Its label is no proof: authors may write labels, but no status.
func (d *Diagnosis) HasPlace() bool {
	c := meta.FindStatusCondition(d.Status.Conditions, ConditionBound)
	return d.Started() || c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == d.Generation
}

// PodNamespace is the namespace of the pod that the Diagnosis is about, or of the pods whose repairs a record counts together. It is
// empty if there is no such pod.
func (d *Diagnosis) PodNamespace() string {
	if d.Spec.PodReference != nil {
		return d.Spec.PodReference.Namespace
	}
	if d.Spec.Mode == ModeRecord {
		for i := range d.Status.Faults {
			if p := d.Status.Faults[i].Pod; p != nil {
				return p.Namespace
			}
		}
	}
	return ""
}

// OwningTrigger is the reference to the Trigger that made the Diagnosis, or nil.
func (d *Diagnosis) OwningTrigger() *metav1.OwnerReference {
	i := slices.IndexFunc(d.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == "Trigger" && o.APIVersion == GroupVersion.String()
	})
	if i < 0 {
		return nil
	}
	return &d.OwnerReferences[i]
}

// Set is the name of the OperationSet to run.
func (s *DiagnosisSpec) Set() string { return cmp.Or(s.OperationSet, DefaultOperationSet) }

// Target is the pod, the device or the node that the Diagnosis is about, for people.
func (s *DiagnosisSpec) Target() string {
	switch device := s.Parameters[ParamDevice]; {
	case s.PodReference != nil:
		return "pod " + s.PodReference.Namespace + "/" + s.PodReference.Name
	case device != "":
		return "device " + device + " of " + s.NodeName
	}
	return "node " + s.NodeName
}

// ApprovalTimeout is the time that a plan waits for its approval.
func (s *DiagnosisSpec) ApprovalTimeout() time.Duration {
	return seconds(s.ApprovalTimeoutSeconds, DefaultApprovalTimeoutSeconds)
}
