// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RecoveryMode is the reaction of an agent to a fault that it sees.
//
// +kubebuilder:validation:Enum=Off;Observe;Plan;Approve;Automatic
type RecoveryMode string

// Modes, the most careful first. If several policies select a fault, the most careful mode holds.
const (
	// RecoveryOff: the fault is neither reported nor repaired.
	RecoveryOff RecoveryMode = "Off"
	// RecoveryObserve: the fault is reported.
	RecoveryObserve RecoveryMode = "Observe"
	// RecoveryPlan: the fault is reported, and a Diagnosis shows the plan of its repair. No change is made.
	RecoveryPlan RecoveryMode = "Plan"
	// RecoveryApprove: the fault is reported, and a person has to approve its repair.
	RecoveryApprove RecoveryMode = "Approve"
	// RecoveryAutomatic: the fault is reported, and repaired if no loss is possible.
	RecoveryAutomatic RecoveryMode = "Automatic"
)

// Bounds and defaults of a RecoveryPolicy. The schema of the CustomResourceDefinition repeats the bounds as literals.
const (
	MaxFaultCodes                   = 32
	MaxRecoveryWindows              = 16
	MaxBreakers                     = 100
	MaxAtOnce                 int32 = 1000
	MaxPerHour                int32 = 10000
	MaxCooldownSeconds        int32 = 604800
	MinWindowSeconds          int32 = 60
	MaxWindowSeconds          int32 = 604800
	MinStalenessSeconds       int32 = 30
	DefaultStalenessSeconds   int32 = 300
	MaxStalenessSeconds       int32 = 86400
	MaxFailedRepairs          int32 = 100
	DefaultMinimumFaultyNodes int32 = 3
	MaxResetAfterSeconds      int32 = 604800
	MinEscalateSeconds        int32 = 60
	MaxEscalateSeconds        int32 = 604800
	DefaultMinimumPods        int32 = 3
	MaxMinimumPods            int32 = 200
	DefaultMaximumNodes       int32 = 1
	MaxMaximumNodes           int32 = 100
)

// ConditionEffective says whether a RecoveryPolicy can have a repair made.
const ConditionEffective = "Effective"

// Reasons of ConditionEffective. ReasonInvalidSpec and ReasonNeverFires are others, and so are the modes.
const (
	// ReasonEffective: faults that it selects may be repaired.
	ReasonEffective = "Effective"
	// ReasonOverruled: another policy that selects all that this one selects is more careful.
	ReasonOverruled = "Overruled"
	// ReasonPaused: spec.paused is set.
	ReasonPaused = "Paused"
	// ReasonOutsideWindow: no window of the policy is open now.
	ReasonOutsideWindow = "OutsideWindow"
	// ReasonNoRepair: the mode Off, Observe or Plan allows no repair, or there is no repair without loss of the faults that it selects.
	ReasonNoRepair = "NoRepair"
)

// ConditionEscalation says whether faults that last are escalated as spec.escalation has it. Without that field there is no such
// condition.
const ConditionEscalation = "Escalation"

// Reasons of ConditionEscalation. ReasonInvalidSpec, ReasonPaused, ReasonNoRepair and ReasonEffective are others.
const (
	// ReasonMissingRight: the manager may not cordon nodes.
	ReasonMissingRight = "MissingRight"
	// ReasonCordonHeld: a node is not cordoned because a bound is reached.
	ReasonCordonHeld = "CordonHeld"
	// ReasonEvictionRefused: the agent of a node does not evict a pod.
	ReasonEvictionRefused = "EvictionRefused"
)

// RecoveryPolicy says which faults agents repair without a request, and within which limits.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=rp,categories=kubediag
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Paused",type=boolean,JSONPath=`.spec.paused`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Effective",type=string,JSONPath=`.status.conditions[?(@.type=="Effective")].status`
// +kubebuilder:printcolumn:name="Next",type=string,JSONPath=`.status.nextWindowTime`
// +kubebuilder:printcolumn:name="Escalation",type=string,JSONPath=`.status.conditions[?(@.type=="Escalation")].reason`
// +kubebuilder:printcolumn:name="OpenBreakers",type=integer,JSONPath=`.status.openBreakers`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Effective")].message`
type RecoveryPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec selects the faults that may be repaired, and sets the limits.
	// +required
	Spec RecoveryPolicySpec `json:"spec"`
	// status is written by the manager.
	// +optional
	Status RecoveryPolicyStatus `json:"status,omitempty"`
}

// RecoveryPolicyList is a list of RecoveryPolicies.
//
// +kubebuilder:object:root=true
type RecoveryPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RecoveryPolicy `json:"items"`
}

// RecoveryPolicySpec selects the faults that may be repaired, and sets the limits. A policy without selectors selects all faults.
type RecoveryPolicySpec struct {
	// mode is the reaction of an agent to the selected faults: Off, Observe, Plan, Approve or Automatic.
	// +required
	Mode RecoveryMode `json:"mode"`
	// paused stops all repairs of the selected faults, those of Diagnoses included. Default: false.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// faultCodes are codes of the catalogue, such as StaleSubPath, 32 at most. Empty: all.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	FaultCodes []string `json:"faultCodes,omitempty"`
	// namespaceSelector selects the namespaces of the pods by their labels. Unset: all, and faults of no pod.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// podSelector selects the pods by their labels. Unset: all, and faults of no pod.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	// nodeSelector selects the nodes by their labels. Unset: all.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// budgets bound the number of repairs. Unset: no bound.
	// +optional
	Budgets *RecoveryBudgets `json:"budgets,omitempty"`
	// cooldownSeconds is the time after a repair, or a failed one, in which the same mount of the same container is not repaired again,
	// in seconds, 0 to 604800. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	CooldownSeconds *int32 `json:"cooldownSeconds,omitempty"`
	// windows are the times at which repairs may be made, 16 at most. Outside of them the mode is Observe. Empty: at any time.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Windows []RecoveryWindow `json:"windows,omitempty"`
	// maximumStalenessSeconds is the greatest age of the agent's knowledge of policies for a repair, in seconds, 30 to 86400.
	// Default: 300. An agent that cannot reach the API server for longer makes no repair.
	// +optional
	// +kubebuilder:validation:Minimum=30
	// +kubebuilder:validation:Maximum=86400
	MaximumStalenessSeconds *int32 `json:"maximumStalenessSeconds,omitempty"`
	// breaker stops the repairs of a fault code when something larger is wrong. Unset: there is none.
	// +optional
	Breaker *RecoveryBreaker `json:"breaker,omitempty"`
	// escalation is the reaction to faults that last. Unset: there is none.
	// +optional
	Escalation *RecoveryEscalation `json:"escalation,omitempty"`
}

// RecoveryEscalation is the reaction to faults that last, within the mode of the policy.
type RecoveryEscalation struct {
	// evict evicts pods whose volume cannot be repaired on their node. Unset: no pod is evicted.
	// +optional
	Evict *EvictEscalation `json:"evict,omitempty"`
	// cordon cordons nodes on which many pods have faults. Unset: no node is cordoned.
	// +optional
	Cordon *CordonEscalation `json:"cordon,omitempty"`
}

// EvictEscalation says when a pod is evicted.
type EvictEscalation struct {
	// afterSeconds is the least age of the fault before that, in seconds, 60 to 604800.
	// +required
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=604800
	AfterSeconds int32 `json:"afterSeconds"`
}

// CordonEscalation says when a node is cordoned.
type CordonEscalation struct {
	// afterSeconds is the least age of a fault that counts, in seconds, 60 to 604800.
	// +required
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=604800
	AfterSeconds int32 `json:"afterSeconds"`
	// minimumPods is the least number of pods of the node with such faults, 1 to 200. Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=200
	MinimumPods *int32 `json:"minimumPods,omitempty"`
	// maximumNodes bounds the nodes that the policy has cordoned at a time, 1 to 100. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaximumNodes *int32 `json:"maximumNodes,omitempty"`
}

// RecoveryBudgets bound the repairs. Several hold together.
//
// +kubebuilder:validation:XValidation:rule="!has(self.__namespace__) || has(self.node)",message="namespace needs node"
type RecoveryBudgets struct {
	// node is the budget of each node.
	// +optional
	Node *RepairBudget `json:"node,omitempty"`
	// namespace is the budget of the pods of each namespace on a node, while another namespace waits there for a repair that is within its
	// own. Default: a quarter of node, at least 1. It needs node.
	// +optional
	Namespace *RepairBudget `json:"namespace,omitempty"`
	// cluster is the budget of all nodes together. A node may use a quarter of it in the time in which atOnce comes back, if atOnce is
	// 16 or more.
	// +optional
	Cluster *RepairBudget `json:"cluster,omitempty"`
	// workload is the budget of all pods of one workload together. A pod without a controller is a workload of its own.
	// +optional
	Workload *RepairBudget `json:"workload,omitempty"`
}

// RepairBudget is a number of repairs at once, and how fast it comes back.
type RepairBudget struct {
	// atOnce bounds the repairs without a pause, 1 to 1000.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	AtOnce int32 `json:"atOnce"`
	// perHour is the number of repairs that come back in an hour, 1 to 10000.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	PerHour int32 `json:"perHour"`
}

// RecoveryWindow is a time at which repairs may be made.
type RecoveryWindow struct {
	// schedule is when the window opens: the five fields of cron(8), or a descriptor such as @daily.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Schedule string `json:"schedule"`
	// durationSeconds is the time that it stays open, in seconds, 60 to 604800.
	// +required
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=604800
	DurationSeconds int32 `json:"durationSeconds"`
	// timeZone is the name of the schedule's time zone, such as Europe/Berlin. Default: UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TimeZone string `json:"timeZone,omitempty"`
}

// RecoveryBreaker says when repairs stop for a fault code, in a pool of nodes.
//
// +kubebuilder:validation:XValidation:rule="has(self.failedRepairs) || has(self.maximumNodesPercent)",message="failedRepairs or maximumNodesPercent must be set"
type RecoveryBreaker struct {
	// failedRepairs in a row open the breaker of a namespace, 1 to 100. Each node counts a row for each namespace, and those of a pool are
	// added up. One node counts for one less, unless the policy selects no other. Failures in several namespaces open the breaker for
	// all. Unset: their number does not matter.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	FailedRepairs *int32 `json:"failedRepairs,omitempty"`
	// maximumNodesPercent opens the breaker of a namespace if a greater share of the pool's nodes has the fault in its pods at once, in
	// percent, 1 to 99. Faults in several namespaces open it for all. Unset: the share does not matter.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=99
	MaximumNodesPercent *int32 `json:"maximumNodesPercent,omitempty"`
	// minimumFaultyNodes is the least number of nodes with the fault at which their share matters, 1 to 5000. Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5000
	MinimumFaultyNodes *int32 `json:"minimumFaultyNodes,omitempty"`
	// nodePoolLabel is the label of nodes whose value names their pool, such as topology.kubernetes.io/zone. Each pool has a
	// breaker of its own. Empty: the cluster is one pool.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	NodePoolLabel string `json:"nodePoolLabel,omitempty"`
	// resetAfterSeconds is when an open breaker closes by itself, in seconds, 60 to 604800. Unset: only a person closes it.
	// +optional
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=604800
	ResetAfterSeconds *int32 `json:"resetAfterSeconds,omitempty"`
	// resetTime closes every breaker of the policy that opened before this time. A person sets it to the present.
	// +optional
	ResetTime *metav1.Time `json:"resetTime,omitempty"`
}

// RecoveryPolicyStatus is the result of the manager's check of a policy, with its breakers.
type RecoveryPolicyStatus struct {
	// conditions are Ready, Effective and, with spec.escalation, Escalation.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// nextWindowTime is when the next window of spec.windows opens. Unset: one is open, none ever opens, or there are none.
	// +optional
	NextWindowTime *metav1.Time `json:"nextWindowTime,omitempty"`
	// openBreakers counts the open breakers.
	// +optional
	OpenBreakers int32 `json:"openBreakers,omitempty"`
	// breakers are the breakers that are open or have been, 100 at most. There is one for each code, pool and namespace, and one for all
	// namespaces together.
	// +optional
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	Breakers []BreakerStatus `json:"breakers,omitempty"`
}

// BreakerState says whether repairs are stopped.
//
// +kubebuilder:validation:Enum=Open;Closed
type BreakerState string

// States of a breaker.
const (
	// BreakerOpen: no repair is made.
	BreakerOpen BreakerState = "Open"
	// BreakerClosed: repairs are made.
	BreakerClosed BreakerState = "Closed"
)

// Reasons for which a breaker is open.
const (
	// ReasonFailedRepairs: too many repairs in a row have failed.
	ReasonFailedRepairs = "FailedRepairs"
	// ReasonTooManyNodes: too many nodes have the fault at once.
	ReasonTooManyNodes = "TooManyNodes"
)

// BreakerStatus is the state of the breaker of a fault code in a pool of nodes.
type BreakerStatus struct {
	// code of the fault.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Code string `json:"code"`
	// pool is the value of nodePoolLabel; empty for nodes without that label, and if there is one pool.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Pool string `json:"pool,omitempty"`
	// namespace is the namespace in whose pods no fault is repaired; empty for all namespaces.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// state is Open or Closed.
	// +required
	State BreakerState `json:"state"`
	// reason for which it opened last: FailedRepairs or TooManyNodes.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Reason string `json:"reason,omitempty"`
	// message says for people why it opened last.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
	// openedTime is when it opened last.
	// +optional
	OpenedTime *metav1.Time `json:"openedTime,omitempty"`
	// closedTime is when it was closed last.
	// +optional
	ClosedTime *metav1.Time `json:"closedTime,omitempty"`
	// nodesWhenClosed is the number of nodes with the fault then. Their share opens it again if there are more.
	// +optional
	NodesWhenClosed int32 `json:"nodesWhenClosed,omitempty"`
}
