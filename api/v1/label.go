// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"crypto/sha256"
	"encoding/hex"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// LabelNode is set by the manager on a Diagnosis to the name of the node whose agent runs it, in the form that
	// NodeLabelValue gives. It makes a watch small and is no proof: the agent compares spec.nodeName, and goes by the
	// condition Bound. The agent sets it on its MountFaults, and compares status.node.
	LabelNode = Group + "/node"
	// LabelTrigger is on every Diagnosis that a Trigger made: the name of the Trigger, in the form that NodeLabelValue gives.
	LabelTrigger = Group + "/trigger"
	// LabelOrigin is on every Diagnosis that is bound to a node: who asked for it, one of the values below.
	LabelOrigin = Group + "/origin"
	// LabelPlan is on a Diagnosis with mode Plan that a person is asked about at once: kubectl kubediag run makes it. The manager deletes
	// it an hour after another Diagnosis has carried out its plan.
	LabelPlan = Group + "/plan"
	// AnnotationApproval is set by the manager on a Diagnosis that waits for its approval: the name of the RecoveryApproval
	// for its agent. It allows no repair: the agent reads that object.
	AnnotationApproval = Group + "/approval"
	// LabelAgent is on the Lease of every agent, with the same value.
	LabelAgent = Group + "/agent"
	// LabelPages is on the Lease of an agent whose predecessor was probably killed for memory: it lists pods and Diagnoses in pages.
	LabelPages = Group + "/lists-in-pages"
	// LabelNotJudged is on the Lease of an agent that could not judge all of its node when it looked last: how many mounts and parts of the
	// node these were, or NothingJudged.
	LabelNotJudged = Group + "/not-judged"
	// NothingJudged is the value of LabelNotJudged while the agent has not looked at its node, or could not.
	NothingJudged = "all"
	// LabelVersion is on the Operations and OperationSets that ship, with the release that has written them.
	LabelVersion = Group + "/version"
	// AnnotationSpecHash is on them with the hash of the spec that was written. One with another spec is a user's.
	AnnotationSpecHash = Group + "/spec-hash"
	// AnnotationManaged is set to "false" by a user on one of them that is to stay as it is.
	AnnotationManaged = Group + "/managed"
	// AnnotationPolicies is on a Diagnosis that the manager made because RecoveryPolicies ask for it: their names, with commas
	// between them.
	AnnotationPolicies = Group + "/policies"
	// AnnotationRecovery is set to "off" on a pod or a namespace by its owner. No fault of it is then repaired without a request.
	AnnotationRecovery = Group + "/recovery"
	// AnnotationCordoned is on a Node that the manager has cordoned: the policies, the faults and the time, as a JSON object. It stays when a person uncordons the node.
	AnnotationCordoned = Group + "/cordoned"
	// LabelRepairSlot is on the Leases with which agents share the budget of a cluster or of a workload.
	LabelRepairSlot = Group + "/repair-slot"
	// AgentLeasePrefix begins the name of the Lease of an agent. NodeLabelValue of its node follows. The holder is the
	// node's name.
	AgentLeasePrefix = "kubediag-agent-"
)

// Values of LabelOrigin.
const (
	// OriginPerson: a person, or a program of theirs.
	OriginPerson = "person"
	// OriginTrigger: a Trigger.
	OriginTrigger = "trigger"
	// OriginPolicy: a RecoveryPolicy that wants a repair approved or shown, or a pod evicted.
	OriginPolicy = "policy"
	// OriginSentinel: the sentinel of the agent repaired on its own.
	OriginSentinel = "sentinel"
)

// Annotations of a Diagnosis that a Trigger made: its cause, as a JSON object of strings, 4096 bytes at most. The annotation of
// a schedule is the schedule, and AnnotationScheduledTime the time.
const (
	AnnotationKubernetesEvent = Group + "/kubernetes-event"
	AnnotationPrometheusAlert = Group + "/prometheus-alert"
	AnnotationMountFault      = Group + "/mount-fault"
	AnnotationCron            = Group + "/cron"
	AnnotationScheduledTime   = Group + "/scheduled-time"
)

// NodeLabelValue is the name of a node where a label can hold it, 63 bytes at most, and a digest of it where not.
func NodeLabelValue(nodeName string) string {
	if len(validation.IsValidLabelValue(nodeName)) == 0 {
		return nodeName
	}
	sum := sha256.Sum256([]byte(nodeName))
	return "sha256-" + hex.EncodeToString(sum[:20])
}

// AgentLeaseName is the name of the Lease of the agent of a node.
func AgentLeaseName(nodeName string) string {
	return AgentLeasePrefix + NodeLabelValue(nodeName)
}
