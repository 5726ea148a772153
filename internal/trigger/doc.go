// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package trigger makes Diagnoses of signals that Triggers match. A source, in a package below this one, watches for signals,
// compares them with the Triggers of its kind, and offers each match as a Cause. The Dispatcher makes at most one Diagnosis
// of a Cause, no faster than its Trigger allows, and counts those that it drops and why.
//
// The name of a Diagnosis is a digest of the Trigger, the cause and a slot of time, so the API server itself refuses a second
// one: two managers, a restart or a burst never make two. Nothing else is remembered, in memory or on disk.
//
// A new kind of signal takes a package with a Source. It holds Rules of its signals, and offers the causes that they match.
package trigger

import v1 "kubediag.org/kubediag/api/v1"

// Source is one kind of signal.
type Source interface {
	// Install takes a Trigger, new or changed, in the place of the earlier one of its name. One of another source is forgotten.
	Install(t *v1.Trigger) error
	// Remove forgets the Trigger of this name.
	Remove(name string)
}

// Offerer takes the causes that a Trigger matched. It never blocks.
type Offerer interface {
	// Offer takes a cause.
	Offer(trigger string, c Cause) error
	// Reject counts a signal that matched and names no target of a Diagnosis.
	Reject(trigger string, kind Kind, r *Rejection)
}
