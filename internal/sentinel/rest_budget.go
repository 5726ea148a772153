// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import "time"

// restBudget limits the share of time that some work takes: each run of the work has to be followed by a rest.
type restBudget struct {
	notBefore time.Time // when the work may run again
	restUntil time.Time // the end of all rests together
}

// charge adds a rest and sets when the work may run again. While at most credit is left of all rests, it may run again
// after half a tick.
func (b *restBudget) charge(now time.Time, rest, credit time.Duration) {
	if b.restUntil.Before(now) {
		b.restUntil = now
	}
	b.restUntil = b.restUntil.Add(rest)
	b.notBefore = now.Add(tickInterval / 2)
	if owed := b.restUntil.Add(-credit); owed.After(b.notBefore) {
		b.notBefore = owed
	}
}
