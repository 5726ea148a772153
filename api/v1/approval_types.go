// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Bounds and default of a RecoveryApproval, in seconds.
const (
	DefaultApprovalExpirationSeconds int32 = 3600
	MaxApprovalExpirationSeconds     int32 = 86400
)

// ApprovalState is the state of a RecoveryApproval.
//
// +kubebuilder:validation:Enum=Pending;Used;Refused
type ApprovalState string

// States of a RecoveryApproval. Used and Refused are final.
const (
	// ApprovalPending: the agent has not read it yet.
	ApprovalPending ApprovalState = "Pending"
	// ApprovalUsed: the agent carries its plan out, or has.
	ApprovalUsed ApprovalState = "Used"
	// ApprovalRefused: it allows no repair, for the reason in the message.
	ApprovalRefused ApprovalState = "Refused"
)

// RecoveryApproval allows one Diagnosis with mode Approve, of the same namespace, to carry out one plan.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=recoveryapprovals,singular=recoveryapproval,scope=Namespaced,shortName=approval,categories=kubediag
// +kubebuilder:printcolumn:name="Diagnosis",type=string,JSONPath=`.spec.diagnosis.name`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Approver",type=string,priority=1,JSONPath=`.spec.approver`
// +kubebuilder:printcolumn:name="Plan",type=string,priority=1,JSONPath=`.spec.planHash`
type RecoveryApproval struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the permission, and its duration.
	// +required
	Spec RecoveryApprovalSpec `json:"spec"`
	// status is the result. The manager writes it, and the agent that uses the approval.
	// +optional
	Status RecoveryApprovalStatus `json:"status,omitempty"`
}

// RecoveryApprovalList is a list of RecoveryApprovals.
//
// +kubebuilder:object:root=true
type RecoveryApprovalList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RecoveryApproval `json:"items"`
}

// RecoveryApprovalSpec is the permission, and its duration.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed"
type RecoveryApprovalSpec struct {
	// diagnosis is the Diagnosis whose plan is allowed.
	// +required
	Diagnosis ApprovedDiagnosis `json:"diagnosis"`
	// planHash is the hash of the plan, as status.plan of the Diagnosis has it.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	PlanHash string `json:"planHash"`
	// expirationSeconds is the time after its creation in which the approval counts, in seconds, 1 to 86400. Default: 3600.
	// +optional
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	ExpirationSeconds *int32 `json:"expirationSeconds,omitempty"`
	// approver is the user who approves, for the record. config/policy/diagnosis-rights.yaml makes sure that it is the one
	// who creates the object.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Approver string `json:"approver,omitempty"`
}

// ApprovedDiagnosis names the Diagnosis of an approval.
type ApprovedDiagnosis struct {
	// name of the Diagnosis, in the namespace of the approval.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the Diagnosis. Default: that of the one with this name.
	// +optional
	UID types.UID `json:"uid,omitempty"`
}

// RecoveryApprovalStatus is the result of an approval.
type RecoveryApprovalStatus struct {
	// state is Pending, Used or Refused.
	// +optional
	State ApprovalState `json:"state,omitempty"`
	// message says why, or names the event for which it waits.
	// +optional
	Message string `json:"message,omitempty"`
	// diagnosisUID is the UID of the Diagnosis that used it.
	// +optional
	DiagnosisUID types.UID `json:"diagnosisUID,omitempty"`
	// time is when it was used or refused.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}

// Expires returns when an approval stops to count.
func (a *RecoveryApproval) Expires() time.Time {
	return a.CreationTimestamp.Add(seconds(a.Spec.ExpirationSeconds, DefaultApprovalExpirationSeconds))
}

// Owners are the UIDs of the Diagnoses that an approval belongs to.
func (a *RecoveryApproval) Owners() (uids []types.UID) {
	for _, o := range a.OwnerReferences {
		if o.Kind == "Diagnosis" && o.APIVersion == GroupVersion.String() {
			uids = append(uids, o.UID)
		}
	}
	return uids
}

// IsFor reports whether an approval is for this Diagnosis: it names it, and its UID or its owner is that of this one. The name alone is no
// proof: whichever Diagnosis gets it next has it.
func (a *RecoveryApproval) IsFor(d *Diagnosis) bool {
	of, owned := a.Spec.Diagnosis, slices.Contains(a.Owners(), d.UID)
	return a.Namespace == d.Namespace && of.Name == d.Name && (of.UID == d.UID || of.UID == "" && owned) && (owned || len(a.Owners()) == 0)
}

// Settled reports whether the state of an approval is final.
func (a *RecoveryApproval) Settled() bool {
	return a.Status.State == ApprovalUsed || a.Status.State == ApprovalRefused
}
