// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds and defaults of an Operation. The schema of the CustomResourceDefinition repeats them as literals.
const (
	DefaultTimeoutSeconds int32 = 30
	MaxTimeoutSeconds     int32 = 86400
	MaxScriptBytes              = 65536
	BuiltInPathPrefix           = "/processor/"
)

// ConditionReady is the condition of an Operation, an OperationSet and a Trigger that says whether it can be used.
const ConditionReady = "Ready"

// Reasons of ConditionReady. An OperationSet has ReasonOperationNotFound too.
const (
	ReasonReady                = "Ready"
	ReasonInvalidSpec          = "Invalid"
	ReasonBuiltInUnknown       = "BuiltInUnknown"
	ReasonFunctionNotSupported = "FunctionNotSupported"
	ReasonInvalidGraph         = "InvalidGraph"
	ReasonOperationNotReady    = "OperationNotReady"
	ReasonSourceNotSupported   = "SourceNotSupported"
)

// Operation is one step of a pipeline: a processor built into the agent, an HTTP server, or a script.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=op,categories=kubediag
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.status.kind`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.status.target`
// +kubebuilder:printcolumn:name="Timeout",type=integer,JSONPath=`.spec.processor.timeoutSeconds`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Operation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the processor to run, and its limits.
	// +required
	Spec OperationSpec `json:"spec"`
	// status is written by the manager.
	// +optional
	Status OperationStatus `json:"status,omitempty"`
}

// OperationList is a list of Operations.
//
// +kubebuilder:object:root=true
type OperationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Operation `json:"items"`
}

// OperationSpec is the processor to run, and its limits.
type OperationSpec struct {
	// processor is the program to run, in exactly one of its forms.
	// +required
	Processor Processor `json:"processor"`
	// dependences is accepted for objects of KubeDiag v0.3 and has no effect.
	// +optional
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	Dependences []string `json:"dependences,omitempty"`
	// parameters are the keys that an HTTP processor or a script reads of the parameters of a Diagnosis, 64 at most. A Trigger
	// puts values of alerts only into parameters that are declared. Those of built-in processors, and the argKeys of scripts,
	// are declared without it.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	Parameters []string `json:"parameters,omitempty"`
	// storage keeps full results on the node.
	// +optional
	Storage *Storage `json:"storage,omitempty"`
}

// Processor names the program to run, in exactly one of three forms: flat (externalIP or externalAddress, externalPort, path,
// scheme), httpServer, or scriptRunner. Without an address, the path /processor/<name> names a processor built into
// the agent. The form function of KubeDiag v0.3 is accepted and never ready.
//
// +kubebuilder:validation:XValidation:rule="[has(self.externalIP) || has(self.externalAddress) || has(self.externalPort) || has(self.path) || has(self.scheme), has(self.httpServer), has(self.scriptRunner), has(self.function)].filter(f, f).size() == 1",message="exactly one form must be set: path (with externalAddress, externalPort and scheme), httpServer, scriptRunner or function; leave out the fields of the others"
// +kubebuilder:validation:XValidation:rule="!(has(self.externalIP) && has(self.externalAddress))",message="externalIP and externalAddress must not both be set"
type Processor struct {
	// externalIP is the IP address of an HTTP processor. Unset: the processor is built into the agent.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ExternalIP *string `json:"externalIP,omitempty"`
	// externalAddress is the IP address or DNS name of an HTTP processor. Unset: the processor is built into the agent.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ExternalAddress *string `json:"externalAddress,omitempty"`
	// externalPort is the TCP port of an HTTP processor, 1 to 65535. Default: 80 for http, 443 for https. Without an
	// address it has no effect.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	ExternalPort *int32 `json:"externalPort,omitempty"`
	// path is the URL path. Default: /. Without an address it must be /processor/<name> of a built-in processor.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Path *string `json:"path,omitempty"`
	// scheme is http or https. Default: http.
	// +optional
	// +kubebuilder:validation:Enum=http;https
	Scheme *string `json:"scheme,omitempty"`
	// httpServer is the nested form of the same.
	// +optional
	HTTPServer *HTTPServer `json:"httpServer,omitempty"`
	// scriptRunner runs a script on the node. It is refused unless the agent runs with --enable-scripts.
	// +optional
	ScriptRunner *ScriptRunner `json:"scriptRunner,omitempty"`
	// function is accepted for objects of KubeDiag v0.3 and never ready: kubediag builds no code on nodes.
	// +optional
	Function *Function `json:"function,omitempty"`
	// timeoutSeconds bounds one attempt, in seconds, 1 to 86400.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
}

// HTTPServer is an HTTP processor, or a built-in one where address is unset.
type HTTPServer struct {
	// address is an IP address or DNS name. Unset: the processor is built into the agent.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Address *string `json:"address,omitempty"`
	// port is a TCP port, 1 to 65535. Default: 80 for http, 443 for https. Without an address it has no effect.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
	// path is the URL path. Default: /. Without an address it must be /processor/<name> of a built-in processor.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Path *string `json:"path,omitempty"`
	// scheme is http or https. Default: http.
	// +optional
	// +kubebuilder:validation:Enum=http;https
	Scheme *string `json:"scheme,omitempty"`
}

// ScriptRunner runs a script with /bin/sh on the node. Arguments are passed as arguments, never pasted into the text.
type ScriptRunner struct {
	// script is the text of the script, 65536 bytes at most.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Script string `json:"script"`
	// argKeys name the parameters and earlier results whose values become the arguments, in this order. A key that has
	// no value passes an empty argument.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	ArgKeys []string `json:"argKeys,omitempty"`
	// operationResultKey names the results: operation.<key>.output and operation.<key>.error. Default: the name of the
	// Operation.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	OperationResultKey *string `json:"operationResultKey,omitempty"`
}

// Function is the form of KubeDiag v0.3 that builds code on a node. It is accepted and never ready.
type Function struct {
	// codeSource maps file names to their contents.
	// +optional
	CodeSource map[string]string `json:"codeSource,omitempty"`
	// runtime is the language runtime.
	// +optional
	Runtime string `json:"runtime,omitempty"`
}

// Storage says where full results are kept.
type Storage struct {
	// hostPath keeps results on the node, below the directory storage of the agent's data root. An absolute path must be below the data
	// root.
	// +optional
	HostPath *HostPathStorage `json:"hostPath,omitempty"`
}

// HostPathStorage is a directory of the node.
type HostPathStorage struct {
	// path is the directory.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path"`
}

// OperationStatus is the result of the manager's check of an Operation.
type OperationStatus struct {
	// observedGeneration is the generation that the rest of the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// kind is BuiltIn, HTTP, Script or Function.
	// +optional
	Kind ProcessorKind `json:"kind,omitempty"`
	// target is the name of the built-in processor or the URL of the HTTP processor.
	// +optional
	Target string `json:"target,omitempty"`
	// conditions holds Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
