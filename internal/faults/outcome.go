// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

// Outcome is how a change went that a process made which can be lost. It is written down as JSON for the process that waits.
type Outcome struct {
	Text  string // the error; empty: none
	Cause int    // which of the causes it is; -1: none of them
	// Calls are the changing calls of the process.
	Calls []calls.Call
}

// OutcomeOf writes an error down, nil for none. causes are the errors that callers distinguish, the same ones as for Err.
func OutcomeOf(err error, log *calls.Log, causes []error) Outcome {
	if err == nil {
		return Outcome{Calls: log.All()}
	}
	return Outcome{err.Error(), slices.IndexFunc(causes, func(target error) bool { return errors.Is(err, target) }), log.All()}
}

// OrderJob is a job that does an order, in the namespace of its parent, and writes down how that went.
func OrderJob[Order any](name string, causes []error, do func(ctx context.Context, order Order) error) subprocess.Job {
	return subprocess.Job{Name: name, Run: func(ctx context.Context, in []byte, emit func(v any) error) error {
		var order Order
		if err := json.Unmarshal(in, &order); err != nil {
			return fmt.Errorf("read order: %w", err)
		}
		log := &calls.Log{}
		return emit(OutcomeOf(do(calls.With(ctx, log), order), log, causes))
	}}
}

var errNoOutcome = errors.New("the helper process returned no result")

// RunJob has a job done, by a runner of its own if that is nil, and adds its calls to those of ctx. process names the process among them. It is an error if
// the job has no outcome.
func RunJob(ctx context.Context, runner *subprocess.Runner, o subprocess.Options, process string) (Outcome, error) {
	var outcome *Outcome
	o.Each = func(text json.RawMessage) error { return json.Unmarshal(text, &outcome) }
	err := cmp.Or(runner, &subprocess.Runner{}).Run(ctx, o)
	log := calls.From(ctx)
	if outcome != nil {
		log.Add(outcome.Calls...)
	}
	switch {
	case err != nil:
		return Outcome{}, log.Did("wait4", process, err)
	case outcome == nil:
		return Outcome{}, errNoOutcome
	}
	return *outcome, nil
}

// Err is the error that was written down.
func (o *Outcome) Err(causes []error) error {
	switch {
	case o.Text == "":
		return nil
	case o.Cause < 0:
		return errors.New(o.Text)
	}
	return &outcomeError{o.Text, causes[o.Cause]}
}

// outcomeError is an error of the process that has done it.
type outcomeError struct {
	text  string
	cause error
}

func (e *outcomeError) Error() string { return e.text }

// Unwrap returns the error that callers compare with.
func (e *outcomeError) Unwrap() error { return e.cause }
