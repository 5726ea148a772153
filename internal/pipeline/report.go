// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
)

// Report says how a run went.
type Report struct {
	// Operations in the order in which they ran.
	Operations []OperationRun
	// Path is the path that succeeded, or the one tried last, as node ids.
	Path []int32
	// Reached is the index in Path of the node that ran last.
	Reached int
	// Succeeded says whether every operation of Path did.
	Succeeded bool
	// Planned is set if the run ended with a plan, as Job.PlanOnly asks: that of the last operation.
	Planned bool
	// Failed are the paths that were tried and failed, in order.
	Failed [][]int32
	// Values are the results, redacted and bounded to 512 KiB as JSON.
	Values map[string]string
	// DeadlineExceeded says that the run ended because its time was up.
	DeadlineExceeded bool
}

// Outcome is how an operation went.
type Outcome string

// Outcomes of an operation. NotApplicable is a clean negative.
const (
	Running       Outcome = "Running"
	Succeeded     Outcome = "Succeeded"
	NotApplicable Outcome = "NotApplicable"
	Failed        Outcome = "Failed"
)

// Reasons why an operation failed, each one word.
const (
	ReasonFailed           = "Failed"
	ReasonTimedOut         = "TimedOut"
	ReasonAbandoned        = "Abandoned"
	ReasonPanicked         = "Panicked"
	ReasonStalled          = "Stalled"
	ReasonInterrupted      = "Interrupted"
	ReasonDeadlineExceeded = "DeadlineExceeded"
)

// reasonWaiting is that of an action, in the journal only, which could not be done yet: it has changed nothing.
const reasonWaiting = "Waiting"

// OperationRun says how the operation of one node went.
type OperationRun struct {
	ID        int32
	Operation string
	Outcome   Outcome
	// Attempts is how often it was tried, counting those that a restart cut short.
	Attempts   int
	Start, End time.Time
	// Reason is one word for a failure, Message says why, or what came of it: redacted, maxMessageBytes at most.
	Reason, Message string
	// NoFault is set if it has looked for every fault and found none.
	NoFault bool
	Actions []ActionRun
	// Findings have texts that are redacted and maxMessageBytes long at most.
	Findings []fault.Finding
	// Gone are faults of earlier operations that are not there any more.
	Gone      []fault.Absence
	Artifacts []Artifact
}

// FoundGone reports whether faults of earlier operations are not there any more.
func (o OperationRun) FoundGone() bool { return len(o.Gone) > 0 }

// ActionPhase is what became of an action.
type ActionPhase string

// Phases of an action.
const (
	Planned      ActionPhase = "Planned"
	Done         ActionPhase = "Done"
	ActionFailed ActionPhase = "Failed"
)

// ActionRun is an action of a plan and what became of it.
type ActionRun struct {
	fault.Action
	Phase   ActionPhase
	Message string
	// Already is set if it is Done, and this run did not do it.
	Already bool
	// Calls are the changing calls that were made for it, by all its attempts.
	Calls []calls.Call
	// Waiting is set if it has Failed only because it may not be done yet, and has changed nothing.
	Waiting bool
}

// Artifact is a result kept whole on the node.
type Artifact struct {
	Key       string `json:"key"`
	Operation string `json:"operation"`
	// Path is absolute in a Report and relative to the data root in a journal.
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}
