// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import "time"

// The rate limit of repairs. If a source is replaced all the time, the first repairBurst repairs follow at once, and
// then one in each repairRefill.
const (
	repairBurst  = 30
	repairRefill = time.Second
)

// repairLimiter is a token bucket that limits the repairs of one place.
type repairLimiter struct {
	tokens   int
	refilled time.Time // when tokens were added last
}

// allow reports whether a repair is allowed now, and takes a token.
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

// repairBackoff delays repairs of one place after failures, and limits their rate.
type repairBackoff struct {
	repairLimiter
	delay                time.Duration
	retryAt, lastAttempt time.Time
}
