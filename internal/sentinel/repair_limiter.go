// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"time"

	"golang.org/x/time/rate"
)

// The rate limit of repairs. If a source is replaced all the time, the first repairBurst repairs follow at once, and
// then one in each repairRefill.
const (
	repairBurst  = 30
	repairRefill = time.Second
)

// newRepairLimiter limits the repairs of one place.
func newRepairLimiter() *rate.Limiter { return rate.NewLimiter(rate.Every(repairRefill), repairBurst) }

// repairLimiters limit the repairs of each place, by mount point.
type repairLimiters map[string]*rate.Limiter

// of returns the limiter of the place of a bind.
func (l repairLimiters) of(b *bind) *rate.Limiter {
	if l[b.point] == nil {
		l[b.point] = newRepairLimiter()
	}
	return l[b.point]
}

// The delay after a failed repair. It doubles with each failure, up to maxRetryDelay.
const (
	firstRetryDelay = time.Second
	maxRetryDelay   = 5 * time.Minute
)

// retry delays repairs after failures.
type retry struct {
	delay time.Duration
	at    time.Time // no repair before
}

func (r *retry) failed(now time.Time) {
	r.delay = min(max(firstRetryDelay, 2*r.delay), maxRetryDelay)
	r.at = now.Add(r.delay)
}

// repairBackoff delays repairs of one place after failures, and limits their rate.
type repairBackoff struct {
	*rate.Limiter
	retry
	lastAttempt time.Time
}
