// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"slices"

	"kubediag.org/kubediag/internal/linux/calls"
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
