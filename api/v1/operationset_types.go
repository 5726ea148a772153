// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds of the paths in the status of an OperationSet. The bounds of the graph are in its schema and in package graph.
const (
	MaxListedPaths = 100
	MaxPathsBytes  = 256 << 10
)

// OperationSet is a directed acyclic graph of Operations.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=opset,categories=kubediag
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Paths",type=integer,JSONPath=`.status.pathCount`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type OperationSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the graph.
	// +required
	Spec OperationSetSpec `json:"spec"`
	// status is written by the manager.
	// +optional
	Status OperationSetStatus `json:"status,omitempty"`
}

// OperationSetList is a list of OperationSets.
//
// +kubebuilder:object:root=true
type OperationSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OperationSet `json:"items"`
}

// OperationSetSpec is the graph.
type OperationSetSpec struct {
	// adjacencyList holds 2 to 1000 nodes with 10000 edges at most. Node 0 is the source and has no operation. If every
	// id is left out or 0, a node's id is its position.
	// +required
	// +kubebuilder:validation:MinItems=2
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	AdjacencyList []Node `json:"adjacencyList"`
}

// Node is a node of the graph of an OperationSet.
type Node struct {
	// id is unique in its list, 0 to the number of nodes less one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=999
	ID int32 `json:"id"`
	// to lists the ids of the nodes that follow, in the order in which they are tried.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=999
	// +listType=atomic
	To []int32 `json:"to,omitempty"`
	// operation is the name of the Operation that runs here. It is empty for node 0 and for no other.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Operation string `json:"operation,omitempty"`
	// dependences is accepted for objects of older releases and has no effect.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	Dependences []int32 `json:"dependences,omitempty"`
}

// Path is a list of nodes from a successor of node 0 to a node that no other follows. Node 0 itself is left out.
//
// +listType=atomic
type Path []Node

// OperationSetStatus is the result of the manager's check of the graph.
type OperationSetStatus struct {
	// observedGeneration is the generation that the rest of the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// ready is true when the graph is valid and every Operation in it exists and is ready.
	// +optional
	Ready bool `json:"ready"`
	// adjacencyListHash identifies the graph that was checked. A Diagnosis that finds another one fails.
	// +optional
	AdjacencyListHash string `json:"adjacencyListHash,omitempty"`
	// pathCount is the number of paths of the graph, 2147483647 if there are more.
	// +optional
	PathCount int32 `json:"pathCount,omitempty"`
	// paths lists the first paths in the order in which they are tried: 100 at most, about 262144 bytes at most.
	// +optional
	// +listType=atomic
	Paths []Path `json:"paths,omitempty"`
	// conditions holds Ready, whose message names the node and the value that is wrong.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
