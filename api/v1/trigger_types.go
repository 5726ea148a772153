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

	// spec says what is run on which signal.
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

// TriggerSpec says what is run on which signal.
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
	// mode of every Diagnosis: Recover, or Plan: write the plan into the status of the Diagnosis and change nothing, or
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
	// repeatIntervalSeconds is how long one cause makes no second Diagnosis, in seconds, 1 to 2592000. Default: 21600.
	// cronTemplate has its schedule instead.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	RepeatIntervalSeconds *int32 `json:"repeatIntervalSeconds,omitempty"`
	// diagnosesPerMinute is how many Diagnoses are made in a minute, 1 to 600. Default: 60. Ten may be made at once. Up to
	// 1000 causes wait for their turn; more are dropped and counted.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	DiagnosesPerMinute *int32 `json:"diagnosesPerMinute,omitempty"`
	// successfulHistoryLimit is how many Diagnoses of the Trigger that Succeeded are kept for each node, 0 to 100. Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	SuccessfulHistoryLimit *int32 `json:"successfulHistoryLimit,omitempty"`
	// failedHistoryLimit is how many Diagnoses of the Trigger that Failed are kept for each node, 0 to 100. Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	FailedHistoryLimit *int32 `json:"failedHistoryLimit,omitempty"`
	// suspend stops the Trigger from making Diagnoses. Default: false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// SourceTemplate is exactly one signal.
//
// +kubebuilder:validation:XValidation:rule="[has(self.prometheusAlertTemplate), has(self.kubernetesEventTemplate), has(self.commonEventTemplate), has(self.cronTemplate), has(self.mountFaultTemplate)].filter(f, f).size() == 1",message="exactly one of prometheusAlertTemplate, kubernetesEventTemplate, commonEventTemplate, cronTemplate and mountFaultTemplate must be set"
type SourceTemplate struct {
	// prometheusAlertTemplate matches alerts posted by Alertmanager.
	// +optional
	PrometheusAlertTemplate *PrometheusAlertTemplate `json:"prometheusAlertTemplate,omitempty"`
	// kubernetesEventTemplate matches Events.
	// +optional
	KubernetesEventTemplate *KubernetesEventTemplate `json:"kubernetesEventTemplate,omitempty"`
	// commonEventTemplate matches PagerDuty common events.
	// +optional
	CommonEventTemplate *CommonEventTemplate `json:"commonEventTemplate,omitempty"`
	// cronTemplate fires by the clock.
	// +optional
	CronTemplate *CronTemplate `json:"cronTemplate,omitempty"`
	// mountFaultTemplate matches faults that the agents see.
	// +optional
	MountFaultTemplate *MountFaultTemplate `json:"mountFaultTemplate,omitempty"`
}

// PrometheusAlertTemplate matches alerts. Expressions are RE2, not anchored; an empty one matches all.
type PrometheusAlertTemplate struct {
	// regexp matches the fields of an alert.
	// +required
	Regexp PrometheusAlertRegexp `json:"regexp"`
	// nodeNameReferenceLabel is the label that names the node.
	// +optional
	NodeNameReferenceLabel string `json:"nodeNameReferenceLabel,omitempty"`
	// podNamespaceReferenceLabel is the label that names the namespace of the pod.
	// +optional
	PodNamespaceReferenceLabel string `json:"podNamespaceReferenceLabel,omitempty"`
	// podNameReferenceLabel is the label that names the pod.
	// +optional
	PodNameReferenceLabel string `json:"podNameReferenceLabel,omitempty"`
	// containerReferenceLabel is the label that names the container.
	// +optional
	ContainerReferenceLabel string `json:"containerReferenceLabel,omitempty"`
	// parameterInjectionLabels are labels whose values become parameters of the same names. An Operation of the OperationSet
	// must declare them.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	ParameterInjectionLabels []string `json:"parameterInjectionLabels,omitempty"`
	// parametersFrom are parameters whose values come from labels or annotations, 64 at most. An Operation of the
	// OperationSet must declare them.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	ParametersFrom []AlertParameter `json:"parametersFrom,omitempty"`
}

// AlertParameter is a parameter whose value comes from an alert.
//
// +kubebuilder:validation:XValidation:rule="has(self.label) != has(self.annotation)",message="exactly one of label and annotation must be set"
type AlertParameter struct {
	// name of the parameter.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// label of the alert.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Label string `json:"label,omitempty"`
	// annotation of the alert.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Annotation string `json:"annotation,omitempty"`
}

// PrometheusAlertRegexp holds an expression a field.
type PrometheusAlertRegexp struct {
	// alertName of the alert.
	// +optional
	AlertName string `json:"alertName,omitempty"`
	// labels by their exact names.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// annotations by their exact names.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// startsAt of the alert, as RFC 3339.
	// +optional
	StartsAt string `json:"startsAt,omitempty"`
	// endsAt of the alert, as RFC 3339.
	// +optional
	EndsAt string `json:"endsAt,omitempty"`
	// generatorURL of the alert.
	// +optional
	GeneratorURL string `json:"generatorURL,omitempty"`
}

// KubernetesEventTemplate matches Events. Expressions are RE2, not anchored; an empty one matches all.
type KubernetesEventTemplate struct {
	// regexp matches the fields of an Event.
	// +required
	Regexp KubernetesEventRegexp `json:"regexp"`
}

// KubernetesEventRegexp holds an expression a field.
type KubernetesEventRegexp struct {
	// name of the Event.
	// +optional
	Name string `json:"name,omitempty"`
	// namespace of the Event.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// reason of the Event.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message of the Event.
	// +optional
	Message string `json:"message,omitempty"`
	// source of the Event.
	// +optional
	Source KubernetesEventSourceRegexp `json:"source,omitempty"`
}

// KubernetesEventSourceRegexp holds an expression a field.
type KubernetesEventSourceRegexp struct {
	// component that reported the Event.
	// +optional
	Component string `json:"component,omitempty"`
	// host that reported the Event.
	// +optional
	Host string `json:"host,omitempty"`
}

// CommonEventTemplate matches PagerDuty common events. Expressions are RE2, not anchored; an empty one matches all.
type CommonEventTemplate struct {
	// regexp matches the fields of an event.
	// +required
	Regexp CommonEventRegexp `json:"regexp"`
}

// CommonEventRegexp holds an expression a field.
type CommonEventRegexp struct {
	// source of the event.
	// +optional
	Source string `json:"source,omitempty"`
	// severity of the event.
	// +optional
	Severity string `json:"severity,omitempty"`
	// class of the event.
	// +optional
	Class string `json:"class,omitempty"`
	// component of the event.
	// +optional
	Component string `json:"component,omitempty"`
	// group of the event.
	// +optional
	Group string `json:"group,omitempty"`
}

// CronTemplate fires by the clock.
type CronTemplate struct {
	// schedule has the five fields of cron(8), or a descriptor such as @hourly.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Schedule string `json:"schedule"`
	// timeZone is the name of the schedule's time zone, such as Europe/Berlin. Default: UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TimeZone string `json:"timeZone,omitempty"`
	// startingDeadlineSeconds is how late a missed run may start, in seconds, from 1. Default: no limit. Only the last of
	// several missed runs starts.
	// +optional
	// +kubebuilder:validation:Minimum=1
	StartingDeadlineSeconds *int32 `json:"startingDeadlineSeconds,omitempty"`
	// concurrencyPolicy says what happens on a node where an earlier Diagnosis of the Trigger has not ended: Forbid leaves
	// the node out, Replace deletes the earlier one, Allow lets both run. Default: Forbid.
	// +optional
	ConcurrencyPolicy ConcurrencyPolicy `json:"concurrencyPolicy,omitempty"`
}

// ConcurrencyPolicy says what happens if the time of a run comes before the earlier one has ended.
//
// +kubebuilder:validation:Enum=Allow;Forbid;Replace
type ConcurrencyPolicy string

// Policies, with the meaning that they have for a CronJob, but for each node.
const (
	AllowConcurrent   ConcurrencyPolicy = "Allow"
	ForbidConcurrent  ConcurrencyPolicy = "Forbid"
	ReplaceConcurrent ConcurrencyPolicy = "Replace"
)

// MountFaultTemplate matches faults that the agents see.
type MountFaultTemplate struct {
	// codes of the catalogue. Empty: all.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=set
	Codes []string `json:"codes,omitempty"`
	// namespaceSelector selects the namespaces of the pods.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// podSelector selects the pods.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
}

// TriggerStatus is what the manager remembers.
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
	// repeated counts what made no Diagnosis because the same cause had made one within repeatIntervalSeconds, or waits for
	// its turn already.
	// +optional
	Repeated int64 `json:"repeated,omitempty"`
	// dropped says why other signals that matched made no Diagnosis.
	// +optional
	// +listType=map
	// +listMapKey=reason
	Dropped []TriggerDrop `json:"dropped,omitempty"`
	// pendingNodes counts the nodes that are still to get a Diagnosis of what fired last.
	// +optional
	PendingNodes int32 `json:"pendingNodes,omitempty"`
	// conditions holds Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// TriggerDrop counts what made no Diagnosis for one reason.
type TriggerDrop struct {
	// reason is one word.
	Reason string `json:"reason"`
	// count is how often.
	Count int64 `json:"count"`
	// lastTime is when it last happened.
	LastTime metav1.Time `json:"lastTime"`
	// message says more about the last time, at most 512 bytes.
	// +optional
	Message string `json:"message,omitempty"`
}
