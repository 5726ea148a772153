// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import "time"

// A source that is replaced all the time has its bind replaced in step at first, and then no more often than the
// allowance grows.
const (
	allowed  = 30
	regained = time.Second
)

// allowance is how many more repairs of one place may follow one another.
type allowance struct {
	left int
	last time.Time // when it grew last
}

// take tells whether there may be one more.
func (a *allowance) take(now time.Time) bool {
	if a.last.IsZero() {
		a.left, a.last = allowed, now
	}
	if grown := int(now.Sub(a.last) / regained); grown > 0 {
		a.left = min(allowed, a.left+grown)
		a.last = a.last.Add(time.Duration(grown) * regained)
	}
	if a.left == 0 {
		return false
	}
	a.left--
	return true
}
