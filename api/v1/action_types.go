// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"crypto/sha256"
	"encoding/hex"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Plan is a repair, as it was planned before anything was changed.
type Plan struct {
	// operation is the name of the Operation that planned it.
	Operation string `json:"operation"`
	// hash identifies the changes of the plan: the kinds and the identities in its actions, in their order, without their
	// sentences. It is a SHA-256 in hexadecimal.
	Hash string `json:"hash"`
	// changes are the lines that hash is of: the boot of the node, and the change of each action, in their order. Each is one line. The last of 64
	// has the number and the hash of all that are left.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=1024
	Changes []string `json:"changes,omitempty"`
	// actions counts its actions.
	Actions int32 `json:"actions"`
	// lossless is true if no action could lose data or work.
	Lossless bool `json:"lossless"`
	// loss lists the possible losses: one entry for each thing. It is empty if no loss is possible.
	// +optional
	// +listType=atomic
	Loss []string `json:"loss,omitempty"`
	// held says why rules such as RecoveryPolicies forbade actions of the plan when it was made: one entry for each reason, at most 10.
	// Only mode Plan asks.
	// +optional
	// +listType=atomic
	Held []string `json:"held,omitempty"`
	// heldActions counts the forbidden actions.
	// +optional
	// +kubebuilder:validation:Minimum=0
	HeldActions int32 `json:"heldActions,omitempty"`
}

// Bounds of the changes of a plan: lines, and bytes of each.
const (
	MaxPlanChanges     = 64
	MaxPlanChangeBytes = 1024
)

// planFormat is hashed first: a release that hashes other lines has another.
const planFormat = "kubediag plan 2\n"

// PlanHash is the hash of a plan that makes these changes.
func PlanHash(changes []string) string {
	h := sha256.New()
	_, _ = h.Write([]byte(planFormat))
	for _, line := range changes {
		_, _ = h.Write([]byte(line + "\n"))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// ApprovalStatus says where the approval of a plan stands.
type ApprovalStatus struct {
	// planHash is the hash of the plan.
	PlanHash string `json:"planHash"`
	// requestTime is when the plan began to wait.
	RequestTime metav1.Time `json:"requestTime"`
	// expirationTime is when it stops to wait.
	ExpirationTime metav1.Time `json:"expirationTime"`
	// name of the RecoveryApproval that allowed the plan.
	// +optional
	Name string `json:"name,omitempty"`
	// uid of it.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// approver is the user that it names.
	// +optional
	Approver string `json:"approver,omitempty"`
	// approveTime is when the agent took it.
	// +optional
	ApproveTime *metav1.Time `json:"approveTime,omitempty"`
}

// Decision has the grounds of a repair without a request.
type Decision struct {
	// mode is the mode of the policies together, or of the agent if no policy selects the fault: Automatic.
	Mode string `json:"mode"`
	// policies are the names of those that matched.
	// +optional
	// +listType=atomic
	Policies []string `json:"policies,omitempty"`
	// reason says why, for people.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// Repeats counts the repairs that one record stands for. The record shows the last of them.
type Repeats struct {
	// count is their number.
	Count int32 `json:"count"`
	// failed is the number of those that failed.
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// firstTarget is the first that was repaired.
	FirstTarget string `json:"firstTarget"`
	// lastTarget is the last.
	LastTarget string `json:"lastTarget"`
	// calls is the number of changing calls for all of them.
	// +optional
	Calls int32 `json:"calls,omitempty"`
}

// ActionPhase is the progress of a planned action.
//
// +kubebuilder:validation:Enum=Planned;Done;Failed
type ActionPhase string

// Phases of an action.
const (
	ActionPlanned ActionPhase = "Planned"
	ActionDone    ActionPhase = "Done"
	ActionFailed  ActionPhase = "Failed"
)

// Action is one change of a plan.
type Action struct {
	// kind is the kind of action: Unmount (take a mount away), Replace (put a volume's source in the place of a mount), Abort (end
	// the connection of a FUSE file system), Detach (detach a device), Evict (evict the pod), RemoveDirectory and RemoveFile
	// (of a pod that is gone), RemoveContainerRecord (the runtime's record of a container).
	Kind string `json:"kind"`
	// target names its object for people.
	Target string `json:"target"`
	// mount is the mount that is changed, by identity.
	// +optional
	Mount *Mount `json:"mount,omitempty"`
	// fault is the code of the fault that it heals.
	// +optional
	Fault string `json:"fault,omitempty"`
	// safety says why it is safe.
	// +optional
	Safety string `json:"safety,omitempty"`
	// loss is the possible loss.
	// +optional
	Loss string `json:"loss,omitempty"`
	// phase is its progress.
	Phase ActionPhase `json:"phase"`
	// message says how it went.
	// +optional
	Message string `json:"message,omitempty"`
	// already is true if it is Done because its change was there already. Default: false.
	// +optional
	Already bool `json:"already,omitempty"`
	// calls are the changing calls of all its attempts, in their order, 32 at most.
	// +optional
	// +listType=atomic
	Calls []ActionCall `json:"calls,omitempty"`
}

// ActionCall is one call that changes something: of the kernel, of the container runtime or of the API server.
type ActionCall struct {
	// name is the system call, or the request.
	Name string `json:"name"`
	// arguments are the arguments in short.
	// +optional
	Arguments string `json:"arguments,omitempty"`
	// result is ok, or the error.
	Result string `json:"result"`
}
