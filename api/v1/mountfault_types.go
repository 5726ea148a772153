// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FaultImpact says how a fault hurts.
//
// +kubebuilder:validation:Enum=Now;Terminating;NextStart;Detach;Cleanup
type FaultImpact string

// Impacts, the worst first.
const (
	// ImpactNow: a container cannot use its volume, or cannot start.
	ImpactNow FaultImpact = "Now"
	// ImpactTerminating: the pod is being deleted, and cannot go.
	ImpactTerminating FaultImpact = "Terminating"
	// ImpactNextStart: the containers run, and the next start of one fails.
	ImpactNextStart FaultImpact = "NextStart"
	// ImpactDetach: a device cannot be detached from the node.
	ImpactDetach FaultImpact = "Detach"
	// ImpactCleanup: something is left behind on the node, and no container is hurt.
	ImpactCleanup FaultImpact = "Cleanup"
)

// FaultHeal says who can heal a fault.
//
// +kubebuilder:validation:Enum=Automatic;Safe;Driver;Person
type FaultHeal string

// Healers, the one with the least work for people first.
const (
	// HealAutomatic: the agent heals it by itself.
	HealAutomatic FaultHeal = "Automatic"
	// HealSafe: a repair without loss is known, and a Diagnosis can make it.
	HealSafe FaultHeal = "Safe"
	// HealDriver: the driver has to mount the volume again first.
	HealDriver FaultHeal = "Driver"
	// HealPerson: a person has to act.
	HealPerson FaultHeal = "Person"
)

// UnlistedFaults is the code of the MountFault that counts the faults of a node which have no object of their own.
const UnlistedFaults = "UnlistedFaults"

// MountFault is one fault that is present on a node. The agent of the node writes it, and deletes it when the fault is gone. It has
// no spec, and no status subresource: one request creates it with its status.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=mf,categories=kubediag
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.status.target`
// +kubebuilder:printcolumn:name="Fault",type=string,JSONPath=`.status.code`
// +kubebuilder:printcolumn:name="Impact",type=string,JSONPath=`.status.impact`
// +kubebuilder:printcolumn:name="Heal",type=string,JSONPath=`.status.heal`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.since`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.node`,priority=1
// +kubebuilder:printcolumn:name="Workload",type=string,JSONPath=`.status.workload.name`,priority=1
// +kubebuilder:printcolumn:name="Container",type=string,JSONPath=`.status.container`,priority=1
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.status.volume`,priority=1
// +kubebuilder:printcolumn:name="Driver",type=string,JSONPath=`.status.driver`,priority=1
// +kubebuilder:printcolumn:name="Diagnosis",type=string,JSONPath=`.status.diagnosis`,priority=1
// +kubebuilder:printcolumn:name="Summary",type=string,JSONPath=`.status.summary`,priority=1
type MountFault struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// status is written by the agent of the node.
	// +required
	Status MountFaultStatus `json:"status"`
}

// MountFaultList is a list of MountFaults.
//
// +kubebuilder:object:root=true
type MountFaultList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MountFault `json:"items"`
}

// Bounds of a MountFault, in characters and in items.
const (
	MaxFaultName     = 253
	MaxFaultDevice   = 63
	MaxFaultSummary  = 200
	MaxFaultPlan     = 500
	MaxFaultCommand  = 1024
	MaxFaultCommands = 4
	MaxFaultEvidence = 8
	MaxFaultFact     = 512
	MaxFaultPolicies = 16
)

// MountFaultStatus is the fault, its harm and the possible repair.
type MountFaultStatus struct {
	// code names the fault in the catalogue, such as StaleSubPath; or UnlistedFaults.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Code string `json:"code"`
	// target is the name of the pod, or else the directory, device or node that is at fault.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Target string `json:"target,omitempty"`
	// impact says how it hurts.
	// +required
	Impact FaultImpact `json:"impact"`
	// heal says who can heal it.
	// +required
	Heal FaultHeal `json:"heal"`
	// node that has the fault.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// pod that suffers. Unset for a fault of the node.
	// +optional
	Pod *FaultPod `json:"pod,omitempty"`
	// workload is the controller of the pod.
	// +optional
	Workload *Workload `json:"workload,omitempty"`
	// container of the pod; empty if the fault concerns all containers that use the volume.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Container string `json:"container,omitempty"`
	// volume by the kubelet's name for it: the PersistentVolume if it comes from a claim, else the name in the pod's spec.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Volume string `json:"volume,omitempty"`
	// claim is the PersistentVolumeClaim that the volume comes from.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Claim string `json:"claim,omitempty"`
	// driver is the CSI driver of the volume.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Driver string `json:"driver,omitempty"`
	// device is the kernel's name of a device that is held, else major:minor of the file system.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Device string `json:"device,omitempty"`
	// holder is the process that holds a device, or serves the volume, such as ceph-fuse[21087].
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Holder string `json:"holder,omitempty"`
	// since is when the fault began, if the kernel says so, else when the agent first saw it.
	// +required
	Since metav1.Time `json:"since"`
	// lastSeen is when this object was last written. It is not written while the fault stays the same.
	// +required
	LastSeen metav1.Time `json:"lastSeen"`
	// summary is one sentence about the fault.
	// +optional
	// +kubebuilder:validation:MaxLength=200
	Summary string `json:"summary,omitempty"`
	// evidence lists the facts that prove the fault, as of lastSeen.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=atomic
	Evidence []string `json:"evidence,omitempty"`
	// plan says in short how the fault is healed.
	// +optional
	// +kubebuilder:validation:MaxLength=500
	Plan string `json:"plan,omitempty"`
	// commands are for a person, in the order in which to try them. Each is for a shell on the node as root, unless it calls kubectl.
	// +optional
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	Commands []FaultCommand `json:"commands,omitempty"`
	// diagnosis is namespace/name of a Diagnosis that has not ended and concerns this fault.
	// +optional
	// +kubebuilder:validation:MaxLength=320
	Diagnosis string `json:"diagnosis,omitempty"`
	// recovery is the decision of the RecoveryPolicies about the fault, and why it is not repaired.
	// +optional
	Recovery *FaultRecovery `json:"recovery,omitempty"`
	// unlisted counts the faults of the node which have no object of their own. Only UnlistedFaults has it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Unlisted int32 `json:"unlisted,omitempty"`
}

// FaultRecovery is the decision of RecoveryPolicies about a fault.
type FaultRecovery struct {
	// mode that holds for the fault now: Observe, Plan, Approve or Automatic.
	// +required
	Mode RecoveryMode `json:"mode"`
	// policies are the names of the RecoveryPolicies that select the fault, the first 16 of them.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Policies []string `json:"policies,omitempty"`
	// pausedBy is the name of a RecoveryPolicy that selects the fault and is paused: no repair is made, that of a Diagnosis neither.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PausedBy string `json:"pausedBy,omitempty"`
	// message says why this mode holds, or names the event for which a repair waits.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
	// failedRepairs counts the repairs of the fault that have failed since one of the same code succeeded on the node.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FailedRepairs int32 `json:"failedRepairs,omitempty"`
	// lastFailureTime is when the last of them failed.
	// +optional
	LastFailureTime *metav1.Time `json:"lastFailureTime,omitempty"`
	// evictAfterSeconds is the age of the fault at which the pod is evicted, if all policies that select it want that, and an
	// eviction helps. Unset: it is not evicted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	EvictAfterSeconds int32 `json:"evictAfterSeconds,omitempty"`
	// evictionRefusal says why the agent would not evict the pod all the same. Empty: it would.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	EvictionRefusal string `json:"evictionRefusal,omitempty"`
}

// FaultCommand is a line for a shell.
type FaultCommand struct {
	// purpose is the effect of the line, and the loss.
	// +required
	// +kubebuilder:validation:MaxLength=200
	Purpose string `json:"purpose"`
	// line is the whole command.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	Line string `json:"line"`
}

// Workload is the controller of a pod.
type Workload struct {
	// kind such as Deployment, StatefulSet, DaemonSet or Job.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// name of the controller, in the namespace of the pod.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}
