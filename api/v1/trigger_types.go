// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds and defaults of a Trigger. The schema of the CustomResourceDefinition repeats the bounds as literals.
const (
	DefaultRepeatIntervalSeconds int32 = 21600
	MaxRepeatIntervalSeconds     int32 = 2592000
	DefaultDiagnosesPerMinute    int32 = 60
	MaxDiagnosesPerMinute        int32 = 600
	DefaultHistoryLimit          int32 = 3
	MaxHistoryLimit              int32 = 100
	MaxExpressionBytes                 = 4096
	MaxExpressions                     = 64
	MaxLastingSeconds            int32 = 2592000
)

// Reasons of ConditionReady that only a Trigger has.
const (
	// ReasonSuspended: spec.suspend is set.
	ReasonSuspended = "Suspended"
	// ReasonReceiverOff: the manager receives no alerts.
	ReasonReceiverOff = "ReceiverOff"
	// ReasonNeverFires: the schedule has no time in the next five years.
	ReasonNeverFires = "NeverFires"
)

// Reasons for which a Trigger matched and no Diagnosis was made. ReasonPodNotFound, ReasonPodOnOtherNode,
// ReasonNodeNotFound, ReasonOperationSetNotFound and ReasonOperationSetNotReady are others.
const (
	// ReasonQueueFull: more causes wait than the Trigger may make Diagnoses of.
	ReasonQueueFull = "QueueFull"
	// ReasonLabelMissing: the alert has not the label or annotation that the Trigger names.
	ReasonLabelMissing = "LabelMissing"
	// ReasonInvalidTarget: the signal names a node, pod or container that no object can have.
	ReasonInvalidTarget = "InvalidTarget"
	// ReasonNoNode: neither the signal nor the Trigger names a node.
	ReasonNoNode = "NoNode"
	// ReasonParameterNotDeclared: no processor of the OperationSet reads the parameter.
	ReasonParameterNotDeclared = "ParameterNotDeclared"
	// ReasonInvalidParameter: the value is too long for a parameter.
	ReasonInvalidParameter = "InvalidParameter"
	// ReasonStillRunning: an earlier Diagnosis of the Trigger for the same target has not ended.
	ReasonStillRunning = "StillRunning"
	// ReasonDeadlineMissed: the time of the schedule is longer ago than startingDeadlineSeconds.
	ReasonDeadlineMissed = "DeadlineMissed"
	// ReasonAPIError: the API server did not take the Diagnosis.
	ReasonAPIError = "APIError"
)

// Trigger creates a Diagnosis when its source fires.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=trig,categories=kubediag
// +kubebuilder:printcolumn:name="OperationSet",type=string,JSONPath=`.spec.operationSet`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Fired",type=integer,JSONPath=`.status.fired`
// +kubebuilder:printcolumn:name="LastFired",type=date,JSONPath=`.status.lastFiredTime`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type Trigger struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec names the OperationSet to run and the signal.
	// +required
	Spec TriggerSpec `json:"spec"`
	// status is written by the manager.
	// +optional
	Status TriggerStatus `json:"status,omitempty"`
}

// TriggerList is a list of Triggers.
//
// +kubebuilder:object:root=true
type TriggerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Trigger `json:"items"`
}

// TriggerSpec names the OperationSet to run and the signal.
//
// +kubebuilder:validation:XValidation:rule="!has(self.sourceTemplate.cronTemplate) || (has(self.nodeName) && size(self.nodeName) > 0) || has(self.nodeSelector)",message="nodeName or nodeSelector must be set with cronTemplate"
// +kubebuilder:validation:XValidation:rule="!(has(self.nodeName) && size(self.nodeName) > 0 && has(self.nodeSelector))",message="nodeName and nodeSelector must not both be set"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Record'",message="mode must not be Record"
type TriggerSpec struct {
	// operationSet is the name of the OperationSet to run.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	OperationSet string `json:"operationSet"`
	// mode of every Diagnosis: Recover, or Plan: write the plan into the status of the Diagnosis and make no change, or
	// Approve: wait with the plan until a RecoveryApproval allows it. Default: Recover.
	// +optional
	Mode DiagnosisMode `json:"mode,omitempty"`
	// parameters are passed to every Diagnosis, 64 at most.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Parameters map[string]string `json:"parameters,omitempty"`
	// nodeName is the node where the signal names none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
	// nodeSelector selects the nodes where the signal names none: each gets a Diagnosis. An empty selector selects all.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// sourceTemplate is the signal, exactly one.
	// +required
	SourceTemplate SourceTemplate `json:"sourceTemplate"`
	// repeatIntervalSeconds is the time in which one cause makes no second Diagnosis, in seconds, 1 to 2592000. Default: 21600.
	// cronTemplate has its schedule instead.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	RepeatIntervalSeconds *int32 `json:"repeatIntervalSeconds,omitempty"`
	// diagnosesPerMinute bounds the Diagnoses that are made in a minute, 1 to 600. Default: 60. Ten may be made at once. Up to
	// 1000 causes wait for their turn; more are dropped and counted.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	DiagnosesPerMinute *int32 `json:"diagnosesPerMinute,omitempty"`
	// successfulHistoryLimit bounds the kept Diagnoses of the Trigger that Succeeded, for each node, 0 to 100. Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	SuccessfulHistoryLimit *int32 `json:"successfulHistoryLimit,omitempty"`
	// failedHistoryLimit bounds the kept Diagnoses of the Trigger that Failed, for each node, 0 to 100. Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	FailedHistoryLimit *int32 `json:"failedHistoryLimit,omitempty"`
	// suspend stops the Trigger from making Diagnoses. Default: false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// TriggerStatus has the counts of a Trigger and its last run.
type TriggerStatus struct {
	// lastScheduleTime is the last time of the schedule of cronTemplate that was acted on.
	// +optional
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`
	// lastFiredTime is when the last Diagnosis was made.
	// +optional
	LastFiredTime *metav1.Time `json:"lastFiredTime,omitempty"`
	// lastDiagnosis is the name of that Diagnosis.
	// +optional
	LastDiagnosis string `json:"lastDiagnosis,omitempty"`
	// matched counts the signals that matched.
	// +optional
	Matched int64 `json:"matched,omitempty"`
	// fired counts the Diagnoses that were made.
	// +optional
	Fired int64 `json:"fired,omitempty"`
	// repeated counts the signals that made no Diagnosis because the same cause had made one within repeatIntervalSeconds, or waits for
	// its turn already.
	// +optional
	Repeated int64 `json:"repeated,omitempty"`
	// dropped says why other signals that matched made no Diagnosis.
	// +optional
	// +listType=map
	// +listMapKey=reason
	Dropped []TriggerDrop `json:"dropped,omitempty"`
	// pendingNodes counts the nodes that are still to get a Diagnosis of the last run.
	// +optional
	PendingNodes int32 `json:"pendingNodes,omitempty"`
	// conditions holds Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// TriggerDrop counts the signals that made no Diagnosis for one reason.
type TriggerDrop struct {
	// reason is one word.
	Reason string `json:"reason"`
	// count is their number.
	Count int64 `json:"count"`
	// lastTime is when it last happened.
	LastTime metav1.Time `json:"lastTime"`
	// message says more about the last time, at most 512 bytes.
	// +optional
	Message string `json:"message,omitempty"`
}
