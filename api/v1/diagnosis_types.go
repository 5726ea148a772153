// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxParameterCharacters bounds the names and the values of all parameters together, in characters.
const MaxParameterCharacters = 65536

// Bounds of a Diagnosis, in bytes and seconds.
const (
	MaxValueBytes                  = 256 << 10
	MaxResultsBytes                = 512 << 10
	MaxParameters                  = 64
	MaxActiveDeadlineSeconds int32 = 86400
	MaxSummaryBytes                = 512
	// MaxArtifactBytes bounds the copies of all artifacts together, compressed.
	MaxArtifactBytes = 256 << 10
	// DefaultApprovalTimeoutSeconds is the time that a Diagnosis with mode Approve waits for its approval by default.
	DefaultApprovalTimeoutSeconds int32 = 86400
	MaxApprovalTimeoutSeconds     int32 = 604800
)

// DefaultOperationSet is the OperationSet of a Diagnosis that names none.
const DefaultOperationSet = "auto"

// EvictOperationSet is the OperationSet that evicts the pod of a Diagnosis if a volume of it cannot be repaired.
const EvictOperationSet = "pod-evict-op-set"

// ParamEvictAllowed is the parameter that allows a Diagnosis to evict its pod, if it is "true". Its creator needs the right to do so.
const ParamEvictAllowed = "param.recover.kubernetes.pod_evict.allowed"

// ParamDevice is the parameter by which a Diagnosis names a device of its node.
const ParamDevice = "param.diagnoser.system.held_device.device"

// Condition types of a Diagnosis.
const (
	// ConditionAccepted is true from the moment an agent took the Diagnosis, false where none ever will.
	ConditionAccepted = "Accepted"
	// ConditionComplete is true when a path succeeded and false when the Diagnosis ended any other way.
	ConditionComplete = "Complete"
	// ConditionApproved is there with mode Approve once there is a plan: false while it waits for its approval.
	ConditionApproved = "Approved"
)

// Condition reasons of a Diagnosis.
const (
	ReasonAccepted      = "DiagnosisAccepted"
	ReasonComplete      = "DiagnosisComplete"
	ReasonNotApplicable = "NotApplicable"
	// ReasonNotJudged: no fault was found, and not everything could be judged.
	ReasonNotJudged = "NotJudged"
	// ReasonNothingRepaired: an operation that repairs has succeeded without an action, and left each fault alone.
	ReasonNothingRepaired      = "NothingRepaired"
	ReasonOperationFailed      = "OperationFailed"
	ReasonOperationNotFound    = "OperationNotFound"
	ReasonOperationInvalid     = "OperationInvalid"
	ReasonOperationSetNotFound = "OperationSetNotFound"
	ReasonOperationSetNotReady = "OperationSetNotReady"
	ReasonOperationSetChanged  = "OperationSetChanged"
	ReasonDeadlineExceeded     = "DeadlineExceeded"
	ReasonInvalid              = "InvalidDiagnosis"
	ReasonPodNotFound          = "PodNotFound"
	ReasonPodNotScheduled      = "PodNotScheduled"
	ReasonPodOnOtherNode       = "PodOnOtherNode"
	ReasonPodInOtherNamespace  = "PodInOtherNamespace"
	ReasonNodeNotFound         = "NodeNotFound"
	// ReasonAgentLost: the agent that ran the Diagnosis has stopped renewing its Lease.
	ReasonAgentLost = "AgentLost"
	// ReasonNoPlace: as many Diagnoses of the namespace or of the node as may run at once have not ended.
	ReasonNoPlace = "NoPlace"
	// ReasonNoAgent: the Diagnosis waits for a node on which no agent answers.
	ReasonNoAgent = "NoAgent"
	// ReasonPlanChanged: spec.planHash or the approval names another plan, so no change was made.
	ReasonPlanChanged = "PlanChanged"
	// ReasonWaitingForApproval: the plan waits for a RecoveryApproval.
	ReasonWaitingForApproval = "WaitingForApproval"
	// ReasonApproved: a RecoveryApproval allows the plan.
	ReasonApproved = "PlanApproved"
	// ReasonApprovalExpired: no RecoveryApproval came in time, so no change was made.
	ReasonApprovalExpired = "ApprovalExpired"
	// ReasonRepairHeld: a RecoveryPolicy or an annotation forbids the repair now. The message has the next step.
	ReasonRepairHeld = "RepairHeld"
	// ReasonRecorded: the agent repaired this on its own, and made the Diagnosis afterwards.
	ReasonRecorded = "RepairRecorded"
)

// DiagnosisMode says how far a Diagnosis goes.
//
// +kubebuilder:validation:Enum=Recover;Plan;Approve;Record
type DiagnosisMode string

// Modes of a Diagnosis.
const (
	// ModeRecover repairs the faults that were found.
	ModeRecover DiagnosisMode = "Recover"
	// ModePlan ends with the plan of the first repair, and makes no change.
	ModePlan DiagnosisMode = "Plan"
	// ModeApprove repairs after a RecoveryApproval has allowed exactly the plan.
	ModeApprove DiagnosisMode = "Approve"
	// ModeRecord is not run: the agent has made it to write down a repair of its sentinel.
	ModeRecord DiagnosisMode = "Record"
)

// ArtifactPlace says where artifacts can be read.
//
// +kubebuilder:validation:Enum=Node;Status
type ArtifactPlace string

// Places of artifacts.
const (
	// ArtifactsOnNode keeps them on the node alone.
	ArtifactsOnNode ArtifactPlace = "Node"
	// ArtifactsInStatus also copies them into the status.
	ArtifactsInStatus ArtifactPlace = "Status"
)

// DiagnosisPhase is where a Diagnosis stands.
//
// +kubebuilder:validation:Enum=Pending;Running;Succeeded;Failed;Unknown
type DiagnosisPhase string

// Phases of a Diagnosis. Succeeded and Failed are final. Unknown means that the agent of the node has not renewed its
// Lease; it turns into Running again when the agent is back.
const (
	DiagnosisPending   DiagnosisPhase = "Pending"
	DiagnosisRunning   DiagnosisPhase = "Running"
	DiagnosisSucceeded DiagnosisPhase = "Succeeded"
	DiagnosisFailed    DiagnosisPhase = "Failed"
	DiagnosisUnknown   DiagnosisPhase = "Unknown"
)

// Outcome is the result of a Diagnosis in one word.
//
// +kubebuilder:validation:Enum=Healed;Planned;AwaitingApproval;FaultFound;NoFault;Completed;Error
type Outcome string

// Outcomes of a Diagnosis.
const (
	// OutcomeHealed: a fault was found and every mount of it was repaired and verified.
	OutcomeHealed Outcome = "Healed"
	// OutcomePlanned: a fault was found, the plan of its repair is in the status, and no change was made.
	OutcomePlanned Outcome = "Planned"
	// OutcomeAwaitingApproval: a fault was found, and the plan of its repair waits for a RecoveryApproval. It is the only
	// outcome of a Diagnosis that has not ended.
	OutcomeAwaitingApproval Outcome = "AwaitingApproval"
	// OutcomeFaultFound: a fault was found and is still there.
	OutcomeFaultFound Outcome = "FaultFound"
	// OutcomeNoFault: every path ended with a clean negative, or all families of faults were searched and no fault was found.
	OutcomeNoFault Outcome = "NoFault"
	// OutcomeCompleted: a path succeeded that searches no fault.
	OutcomeCompleted Outcome = "Completed"
	// OutcomeError: the Diagnosis could not do its work.
	OutcomeError Outcome = "Error"
)

// Diagnosis runs an OperationSet on one node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=diagnoses,singular=diagnosis,scope=Namespaced,shortName=diag,categories=kubediag
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.status.target`
// +kubebuilder:printcolumn:name="Fault",type=string,JSONPath=`.status.faults[0].code`
// +kubebuilder:printcolumn:name="Outcome",type=string,JSONPath=`.status.outcome`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="OperationSet",type=string,priority=1,JSONPath=`.spec.operationSet`
// +kubebuilder:printcolumn:name="Mode",type=string,priority=1,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Origin",type=string,priority=1,JSONPath=`.metadata.labels.diagnosis\.kubediag\.org/origin`
// +kubebuilder:printcolumn:name="Node",type=string,priority=1,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Container",type=string,priority=1,JSONPath=`.spec.podReference.container`
// +kubebuilder:printcolumn:name="Phase",type=string,priority=1,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Summary",type=string,priority=1,JSONPath=`.status.summary`
//
// Parameters cannot be changed, so the rule is for new objects, which have no status. It lets others be ended that were stored before there
// was a bound: with each status the API server checks all of the object.
//
// +kubebuilder:validation:XValidation:rule="has(self.status) || !has(self.spec.parameters) || self.spec.parameters.map(k, size(k) + size(self.spec.parameters[k])).sum() <= 65536",message="spec.parameters must not have more than 65536 characters in all"
type Diagnosis struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the order: which OperationSet runs, and where.
	// +required
	Spec DiagnosisSpec `json:"spec"`
	// status is written by the agent of the node, and by the manager before an agent has it or when the agent is gone.
	// +optional
	Status DiagnosisStatus `json:"status,omitempty"`
}

// DiagnosisList is a list of Diagnoses.
//
// +kubebuilder:object:root=true
type DiagnosisList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Diagnosis `json:"items"`
}

// DiagnosisSpec is the order: which OperationSet runs, and where. It cannot be changed, but nodeName can be filled in once.
//
// +kubebuilder:validation:XValidation:rule="(has(self.nodeName) && size(self.nodeName) > 0) || has(self.podReference)",message="nodeName or podReference must be set"
// +kubebuilder:validation:XValidation:rule="self.operationSet == oldSelf.operationSet",message="operationSet cannot be changed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.nodeName) || size(oldSelf.nodeName) == 0 || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)",message="nodeName cannot be changed once it is set"
// +kubebuilder:validation:XValidation:rule="has(self.podReference) == has(oldSelf.podReference) && (!has(self.podReference) || self.podReference == oldSelf.podReference)",message="podReference cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.parameters) == has(oldSelf.parameters) && (!has(self.parameters) || self.parameters == oldSelf.parameters)",message="parameters cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.activeDeadlineSeconds) == has(oldSelf.activeDeadlineSeconds) && (!has(self.activeDeadlineSeconds) || self.activeDeadlineSeconds == oldSelf.activeDeadlineSeconds)",message="activeDeadlineSeconds cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.mode) == has(oldSelf.mode) && (!has(self.mode) || self.mode == oldSelf.mode)",message="mode cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.planHash) == has(oldSelf.planHash) && (!has(self.planHash) || self.planHash == oldSelf.planHash)",message="planHash cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.artifacts) == has(oldSelf.artifacts) && (!has(self.artifacts) || self.artifacts == oldSelf.artifacts)",message="artifacts cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.approvalTimeoutSeconds) == has(oldSelf.approvalTimeoutSeconds) && (!has(self.approvalTimeoutSeconds) || self.approvalTimeoutSeconds == oldSelf.approvalTimeoutSeconds)",message="approvalTimeoutSeconds cannot be changed"
// +kubebuilder:validation:XValidation:rule="!has(self.planHash) || !has(self.mode) || self.mode != 'Plan'",message="planHash cannot be set with mode Plan"
// +kubebuilder:validation:XValidation:rule="!has(self.approvalTimeoutSeconds) || (has(self.mode) && self.mode == 'Approve')",message="approvalTimeoutSeconds takes mode Approve"
type DiagnosisSpec struct {
	// operationSet is the name of the OperationSet to run. Default: auto, which runs all that applies to the pod, the node
	// or the device that is named.
	// +optional
	// +kubebuilder:default=auto
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	OperationSet string `json:"operationSet,omitempty"`
	// mode is Recover, or Plan: write the plan into the status, and make no change, or Approve: wait with the plan
	// until a RecoveryApproval allows it. Record is not run, and only agents use it. Default: Recover.
	// +optional
	Mode DiagnosisMode `json:"mode,omitempty"`
	// approvalTimeoutSeconds is the time that the plan waits for its approval, in seconds, 1 to 604800. It takes mode Approve.
	// Default: 86400.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	ApprovalTimeoutSeconds *int32 `json:"approvalTimeoutSeconds,omitempty"`
	// planHash is the hash of the only plan that may be carried out, as status.plan of an earlier Diagnosis has it. Default:
	// any plan is carried out.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	PlanHash string `json:"planHash,omitempty"`
	// artifacts is Node, or Status: copy the artifacts into the status too, when the Diagnosis ends. Default: Node.
	// +optional
	Artifacts ArtifactPlace `json:"artifacts,omitempty"`
	// nodeName is the node. Default: the node of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
	// podReference is the pod. Operations about a pod need it.
	// +optional
	PodReference *PodReference `json:"podReference,omitempty"`
	// parameters are passed to every operation, 64 at most, with 65536 characters in all, names and values. They never choose the
	// object of a change.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Parameters map[string]string `json:"parameters,omitempty"`
	// activeDeadlineSeconds bounds the whole Diagnosis from its startTime, in seconds, 1 to 86400. The time that a plan
	// waits for its approval does not count, and with the approval the deadline starts again. Default: the agent's
	// --diagnosis-timeout, 1800 unless set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	ActiveDeadlineSeconds *int32 `json:"activeDeadlineSeconds,omitempty"`
}

// PodReference names a pod and, where it matters, one of its containers.
type PodReference struct {
	// namespace of the pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// name of the pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// container of the pod. Default: all of them.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Container string `json:"container,omitempty"`
}

// DiagnosisStatus is the progress and the result of a Diagnosis.
type DiagnosisStatus struct {
	// phase is where the Diagnosis stands.
	// +optional
	Phase DiagnosisPhase `json:"phase,omitempty"`
	// outcome is the result in one word.
	// +optional
	Outcome Outcome `json:"outcome,omitempty"`
	// target is the pod, the node or the device that it is about, for people.
	// +optional
	Target string `json:"target,omitempty"`
	// summary is one sentence with the result, or the event for which it waits, and the next step, in 512 bytes at most.
	// +optional
	Summary string `json:"summary,omitempty"`
	// plan is the repair that was planned last. Its operation has its actions.
	// +optional
	Plan *Plan `json:"plan,omitempty"`
	// approval is where the approval of the plan stands, with mode Approve.
	// +optional
	Approval *ApprovalStatus `json:"approval,omitempty"`
	// decision has the grounds of a repair without a request.
	// +optional
	Decision *Decision `json:"decision,omitempty"`
	// repeats counts the repairs that one record stands for, if there are several.
	// +optional
	Repeats *Repeats `json:"repeats,omitempty"`
	// startTime is when an agent took the Diagnosis, or the manager refused it. Older releases stored null before that.
	// +optional
	// +nullable
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// completionTime is when it became Succeeded or Failed.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// conditions holds Accepted and Complete, and with mode Approve also Approved.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// adjacencyListHash is the hash of the OperationSet with which the Diagnosis started.
	// +optional
	AdjacencyListHash string `json:"adjacencyListHash,omitempty"`
	// checkpoint is the path and the node reached last.
	// +optional
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`
	// succeededPath is the first path whose operations all succeeded.
	// +optional
	SucceededPath Path `json:"succeededPath,omitempty"`
	// failedPaths lists the paths that were tried and failed, 100 at most. The node that failed is the last one of its
	// path that operations lists with a phase other than Succeeded.
	// +optional
	// +listType=atomic
	FailedPaths []Path `json:"failedPaths,omitempty"`
	// operationResults holds the results of all operations that succeeded, by key. A value is 262144 bytes at most, all
	// together are 524288 bytes at most; longer results are kept on the node, see artifacts.
	// +optional
	OperationResults map[string]string `json:"operationResults,omitempty"`
	// operations says how each operation went, in the order in which they ran.
	// +optional
	// +listType=atomic
	Operations []OperationRun `json:"operations,omitempty"`
	// faults are the findings.
	// +optional
	// +listType=atomic
	Faults []Fault `json:"faults,omitempty"`
	// artifacts are results kept whole on the node.
	// +optional
	// +listType=atomic
	Artifacts []Artifact `json:"artifacts,omitempty"`
}

// Checkpoint is a place in the list of paths.
type Checkpoint struct {
	// pathIndex is the index of the path in the order in which paths are tried, from 0.
	PathIndex int32 `json:"pathIndex"`
	// nodeIndex is the index of the node in that path, from 0; node 0 of the graph is not counted.
	NodeIndex int32 `json:"nodeIndex"`
}

// OperationPhase is how an operation went.
//
// +kubebuilder:validation:Enum=Running;Succeeded;NotApplicable;Failed
type OperationPhase string

// Phases of an operation. NotApplicable is a clean negative: this is not that fault.
const (
	OperationRunning       OperationPhase = "Running"
	OperationSucceeded     OperationPhase = "Succeeded"
	OperationNotApplicable OperationPhase = "NotApplicable"
	OperationFailed        OperationPhase = "Failed"
)

// OperationRun says how one operation of a Diagnosis went.
type OperationRun struct {
	// id is the id of the node of the graph.
	ID int32 `json:"id"`
	// operation is the name of the Operation.
	Operation string `json:"operation"`
	// phase is how it went.
	Phase OperationPhase `json:"phase"`
	// attempts counts its attempts.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// startTime is when the first attempt began.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
	// completionTime is when the last attempt ended.
	// +optional
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`
	// reason is one word for the end.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says why, at most 4096 bytes.
	// +optional
	Message string `json:"message,omitempty"`
	// actions is the plan of a recoverer, written before any change, with its progress.
	// +optional
	// +listType=atomic
	Actions []Action `json:"actions,omitempty"`
}
