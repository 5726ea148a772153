// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import "time"

// restBudget bounds how much of the time is spent on something: it earns a rest whenever it is done.
type restBudget struct {
	notBefore time.Time // not before
	restUntil time.Time // when all rests are over that were earned
}

// charge says when it may be done again, after it has earned so much rest: at once, or nearly, as long as no more than credit
// is left of all rests.
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
