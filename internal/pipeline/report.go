// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
)

// report says how a run went.
type report struct {
	// Operations in the order in which they ran.
	Operations []operationRun
	// Path is the path that succeeded, or the one tried last, as node ids.
	Path []int32
	// Reached is the index in Path of the node that ran last.
	Reached int
	// Succeeded says whether every operation of Path did.
	Succeeded bool
	// Planned is set if the run ended with a plan, as job.PlanOnly asks: that of the last operation.
	Planned bool
	// Failed are the paths that were tried and failed, in order.
	Failed [][]int32
	// Results are those of all operations, redacted and bounded to 512 KiB as JSON.
	Results map[string]string
	// DeadlineExceeded says that the run ended because its time was up.
	DeadlineExceeded bool
}

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

// operationRun says how the operation of one node went: as the status has it, and what the rest of the status is made of.
type operationRun struct {
	v1.OperationRun
	// Plan is nil if there is none.
	Plan *v1.Plan
	// NoFault is set if it has looked for every fault and found none.
	NoFault bool
	// Findings have texts that are redacted and maxMessageBytes long at most.
	Findings []fault.Finding
	// Gone are faults of earlier operations that are not there any more.
	Gone      []fault.Absence
	Artifacts []v1.Artifact
}

// foundGone reports whether faults of earlier operations are not there any more.
func (o operationRun) foundGone() bool { return len(o.Gone) > 0 }
