// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"errors"
	"time"
)

// stalledError is a failure that another try does not repair: a person is needed.
type stalledError struct {
	Err  error
	held bool // by a rule: nothing was tried
}

// Stalled marks an error as one that is not tried again.
func Stalled(err error) error { return &stalledError{Err: err} }

// Held marks the error of a repair that a rule forbids now. It is not tried again, and has changed nothing.
func Held(err error) error { return &stalledError{Err: err, held: true} }

// Error is that of the cause.
func (e *stalledError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *stalledError) Unwrap() error { return e.Err }

// unjudgedError is that of a look that could not judge everything, and has found no fault.
type unjudgedError struct{ text string }

// Error names the parts that were not judged.
func (e *unjudgedError) Error() string { return e.text }

// maxUnjudged bounds how many things that were not judged are named.
const maxUnjudged = 10

// UnjudgedError is the error of a result in which something could not be judged and no fault was found; nil for any
// other.
func UnjudgedError(r Result) error {
	if len(r.Unjudged) == 0 || len(r.Findings) > 0 {
		return nil
	}
	return &unjudgedError{"not everything could be judged: " + JoinReasons(r.Unjudged, maxUnjudged)}
}

// IsUnjudged reports whether an error is that of an UnjudgedError.
func IsUnjudged(err error) bool {
	var unjudged *unjudgedError
	return errors.As(err, &unjudged)
}

// WaitingError is a failure that is worth another try after a while.
type WaitingError struct {
	Err   error
	After time.Duration
}

// Error is that of the cause.
func (e *WaitingError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *WaitingError) Unwrap() error { return e.Err }

// IsStalled reports whether a failure is not to be tried again.
func IsStalled(err error) bool {
	var stalled *stalledError
	return errors.As(err, &stalled)
}

// IsHeld reports whether a rule has forbidden a repair.
func IsHeld(err error) bool {
	var stalled *stalledError
	return errors.As(err, &stalled) && stalled.held
}
