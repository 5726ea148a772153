// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import "time"

// A source that is replaced all the time has its bind replaced in step at first, and then no more often than the
// allowance grows.
const (
	repairBurst  = 30
	repairRefill = time.Second
)

// repairLimiter is how many more repairs of one place may follow one another.
type repairLimiter struct {
	tokens   int
	refilled time.Time // when it grew last
}

// allow tells whether there may be one more.
func (l *repairLimiter) allow(now time.Time) bool {
	if l.refilled.IsZero() {
		l.tokens, l.refilled = repairBurst, now
	}
	if refill := int(now.Sub(l.refilled) / repairRefill); refill > 0 {
		l.tokens = min(repairBurst, l.tokens+refill)
		l.refilled = l.refilled.Add(time.Duration(refill) * repairRefill)
	}
	if l.tokens == 0 {
		return false
	}
	l.tokens--
	return true
}
