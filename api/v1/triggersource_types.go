// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
	// mountFaultTemplate matches the MountFaults that the agents write.
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
	// concurrencyPolicy is for a node on which an earlier Diagnosis of the Trigger has not ended: Forbid leaves
	// the node out, Replace deletes the earlier one, Allow lets both run. Default: Forbid.
	// +optional
	ConcurrencyPolicy ConcurrencyPolicy `json:"concurrencyPolicy,omitempty"`
}

// ConcurrencyPolicy is the reaction to a run whose time comes before the earlier one has ended.
//
// +kubebuilder:validation:Enum=Allow;Forbid;Replace
type ConcurrencyPolicy string

// Policies, with the meaning that they have for a CronJob, but for each node.
const (
	AllowConcurrent   ConcurrencyPolicy = "Allow"
	ForbidConcurrent  ConcurrencyPolicy = "Forbid"
	ReplaceConcurrent ConcurrencyPolicy = "Replace"
)

// MountFaultTemplate matches the MountFaults that the agents write.
type MountFaultTemplate struct {
	// codes of the catalogue, or UnlistedFaults. Empty: all of the catalogue.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=set
	Codes []string `json:"codes,omitempty"`
	// namespaceSelector selects the namespaces of the pods. A fault without a pod is in none.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// podSelector selects the pods. A fault without a pod has none.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	// nodeSelector selects the nodes that have the faults.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// lastingSeconds is the least age of a fault, in seconds, 0 to 2592000. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	LastingSeconds *int32 `json:"lastingSeconds,omitempty"`
}
