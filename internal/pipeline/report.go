// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"slices"
	"strings"

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
	// Results are those of all operations, redacted and bounded to job.MaxResults.
	Results map[string]string
	// DeadlineExceeded says that the run ended because its time was up.
	DeadlineExceeded bool
}

// last is the operation that ran last.
func (r report) last() *operationRun { return &r.Operations[len(r.Operations)-1] }

// terminalError says why a run did not succeed: the failures first, for a person can do something about them. setting is that of the
// deadline.
func (r report) terminalError(setting string) *terminalError {
	if r.Succeeded || r.Planned {
		return nil
	}
	reason := v1.ReasonNotApplicable
	var failed, negative []string
	for _, o := range r.Operations {
		switch {
		case o.Phase == v1.OperationFailed && o.Reason == reasonHeld:
			if len(failed) == 0 {
				reason = v1.ReasonRepairHeld
			}
			failed = append(failed, fmt.Sprintf("operation %s (node %d) may not repair now: %s", o.Operation, o.ID, o.Message))
		case o.Phase == v1.OperationFailed && o.Reason == reasonNotJudged:
			if len(failed) == 0 {
				reason = v1.ReasonNotJudged
			}
			failed = append(failed, fmt.Sprintf("operation %s (node %d) found no fault, but %s", o.Operation, o.ID, o.Message))
		case o.Phase == v1.OperationFailed:
			reason = v1.ReasonOperationFailed
			attempts := "1 attempt"
			if o.Attempts != 1 {
				attempts = fmt.Sprintf("%d attempts", o.Attempts)
			}
			failed = append(failed, fmt.Sprintf("operation %s (node %d) failed after %s: %s", o.Operation, o.ID, attempts, o.Message))
		case o.Phase == v1.OperationNotApplicable:
			negative = append(negative, fmt.Sprintf("operation %s (node %d) is not applicable: %s", o.Operation, o.ID, o.Message))
		}
	}
	texts := slices.Concat(failed, negative)
	if r.DeadlineExceeded {
		reason, texts = v1.ReasonDeadlineExceeded, slices.Insert(texts, 0, "the deadline of the Diagnosis has passed ("+setting+")")
	}
	return &terminalError{reason: reason, message: strings.Join(texts, "; ")}
}

// nothingLeft reports whether every action that is done found nothing left to do.
func (r report) nothingLeft() bool {
	already := false
	for _, o := range r.Operations {
		for _, a := range o.Actions {
			if a.Phase == v1.ActionDone && !a.Already {
				return false
			}
			already = already || a.Already
		}
	}
	return already
}

// Reasons why an operation failed, each one word.
const (
	ReasonFailed           = "Failed"
	reasonTimedOut         = "TimedOut"
	reasonAbandoned        = "Abandoned"
	reasonPanicked         = "Panicked"
	reasonStalled          = "Stalled"
	reasonInterrupted      = "Interrupted"
	reasonDeadlineExceeded = "DeadlineExceeded"
	// reasonNotJudged: it has found no fault, and could not judge everything.
	reasonNotJudged = v1.ReasonNotJudged
	// reasonHeld: a rule such as a RecoveryPolicy forbids the repair now.
	reasonHeld = "Held"
)

// reasonWaiting is that of an action, in the journal only, which could not be done yet: it has changed nothing.
const reasonWaiting = "Waiting"

// operationRun says how the operation of one node went: as the status has it, and the parts of which the rest of the status is made.
type operationRun struct {
	v1.OperationRun
	// Plan is nil if there is none.
	Plan *v1.Plan
	// Outlived is set if the plan has an action left about a mount or a device of an earlier boot.
	Outlived bool
	// Begun is set if an action of the plan was begun.
	Begun bool
	// NoFault is set if it has looked for every fault and found none.
	NoFault bool
	// Findings have texts that are redacted and maxMessageBytes long at most.
	Findings []fault.Finding
	// Gone are faults of earlier operations that are not there any more.
	Gone      []fault.Absence
	Artifacts []v1.Artifact
}

// rebooted is why such a plan is not carried out.
const rebooted = "the node has rebooted since, so no mount and no device in it is the same"

// changed says how much of the plan was carried out before it was given up.
func (o *operationRun) changed() string {
	if !o.Begun {
		return "nothing was changed"
	}
	n := 0
	for _, a := range o.Actions {
		if a.Phase == v1.ActionDone {
			n++
		}
	}
	return fmt.Sprintf("%d of %d actions are known to be done", n, len(o.Actions))
}

// foundGone reports whether faults of earlier operations are not there any more.
func (o operationRun) foundGone() bool { return len(o.Gone) > 0 }
