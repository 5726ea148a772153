// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Trigger creates a Diagnosis when its source speaks.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=trig,categories=kubediag
// +kubebuilder:printcolumn:name="OperationSet",type=string,JSONPath=`.spec.operationSet`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
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
// +kubebuilder:validation:XValidation:rule="!has(self.sourceTemplate.cronTemplate) || (has(self.nodeName) && size(self.nodeName) > 0)",message="nodeName must be set with cronTemplate"
type TriggerSpec struct {
	// operationSet is the name of the OperationSet to run.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	OperationSet string `json:"operationSet"`
	// parameters are passed to every Diagnosis, 64 at most.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Parameters map[string]string `json:"parameters,omitempty"`
	// nodeName is the node where the signal names none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
	// sourceTemplate is the signal, exactly one.
	// +required
	SourceTemplate SourceTemplate `json:"sourceTemplate"`
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
	// parameterInjectionLabels are labels whose values become parameters of the same names.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	ParameterInjectionLabels []string `json:"parameterInjectionLabels,omitempty"`
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
}

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
	// lastScheduleTime is when cronTemplate last fired.
	// +optional
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`
	// conditions holds Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
