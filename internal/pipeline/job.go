// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// The errors of a run in addition to errors of the disk, of BeforeRepair, and the cause for which its context was cancelled.
var (
	// errCorrupt: the journal or a result on the disk is not as it was written. Nothing was run.
	errCorrupt = errors.New("journal is corrupted")
	// errFormat: another release has written the journal, in another format. Nothing was run.
	errFormat = errors.New("journal has format")
	// errGraphChanged: the journal is that of another graph. Nothing was run.
	errGraphChanged = errors.New("graph has changed")
	// errFull: the run would write more into its journal than a run may.
	errFull = errors.New("journal is full")
)

// errDeadline is the cause of a context whose run is over time.
var errDeadline = errors.New("deadline of the run has passed")

// operation runs at a node.
type operation struct {
	Name string
	Step Step
	// HasSideEffects says that Step.Processor may change something, as an external server or a script may. The journal on the
	// disk then says so before it runs.
	HasSideEffects bool
	// Timeout bounds one attempt.
	Timeout time.Duration
	// Storage is a directory below the data root, as files.storageDir gives it, where results are kept whole. Empty: no.
	Storage string
}

// job is one run.
type job struct {
	// Request is that of every operation, with the parameters in Values. The UID in it names the journal: letters,
	// digits, - and _, 128 at most.
	Request processor.Request
	Graph   *graph.Graph
	// Operations by node id, for every node but 0.
	Operations map[int32]operation
	// Deadline of the whole run.
	Deadline time.Time
	// MaxResults bounds the results in the report, in bytes of JSON.
	MaxResults int
	// PlanOnly ends the run with the first plan that would change something, before BeforeRepair.
	PlanOnly bool
	// Agreed: only a plan that a person has seen may be carried out, so no other is made in its place.
	Agreed bool
	// BeforeRepair, if it is set, is called when a plan is in the journal and before anything of it is done. An error
	// ends the run with nothing changed, and the run returns it; the plan is resumed when the job is begun again. again plans a
	// second time, and changes nothing.
	BeforeRepair func(ctx context.Context, r report, again replan) error
	// OperationEnded, if it is set, is called for every operation that ends in this process: the last of the report.
	OperationEnded func(r report)
	// ActionEnded, if it is set, is called for every action of an operation that ends in this process. now returns the report: its size is that
	// of the plan, so it is not made for each action.
	ActionEnded func(operation string, now func() report, a ActionEnd)
}

// replan returns the plan that would be made now. It says nothing about the plan in the journal.
type replan func(ctx context.Context) (repair.Plan, error)

var uidPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]*$`)

// isFileName reports whether a UID can be the name of a file and part of no other.
func isFileName(uid string) bool { return len(uid) <= 128 && uidPattern.MatchString(uid) }

// begin opens the journal of a job, and goes on from it if there is one.
func (r *Runner) begin(job job) (*run, error) {
	uid := job.Request.Diagnosis.UID
	if !isFileName(uid) {
		return nil, fmt.Errorf("opening journal: %q cannot be the name of a file", uid)
	}
	if _, taken := r.running.LoadOrStore(uid, true); taken {
		return nil, fmt.Errorf("running %q: it runs already", uid)
	}
	x := &run{runner: r, job: job, results: &results{whole: map[string]string{}, shown: map[string]string{}, limit: job.MaxResults}}
	defer func() {
		if x.journal == nil { // it does not run
			r.running.Delete(uid)
		}
	}()
	var err error
	x.journal, x.states, err = r.openJournal(job)
	return x, err
}
