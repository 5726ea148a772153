// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import "time"

// pace bounds how much of the time is spent on something: it earns a rest whenever it is done.
type pace struct {
	next  time.Time // not before
	rests time.Time // when all rests are over that were earned
}

// after says when it may be done again, after it has earned so much rest: at once, or nearly, as long as no more than credit
// is left of all rests.
func (p *pace) after(now time.Time, earned, credit time.Duration) {
	if p.rests.Before(now) {
		p.rests = now
	}
	p.rests = p.rests.Add(earned)
	p.next = now.Add(beat / 2)
	if owed := p.rests.Add(-credit); owed.After(p.next) {
		p.next = owed
	}
}
