// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"testing"
	"time"
)

func TestRepairLimiter(t *testing.T) {
	t.Parallel()
	var limiter repairLimiter
	now := time.Unix(0, 0).Add(time.Hour)
	drain := func() (n int) {
		for n < 1000 && limiter.allow(now) {
			n++
		}
		return n
	}
	for _, step := range []struct {
		later time.Duration
		want  int
	}{
		{0, repairBurst}, {0, 0}, {repairRefill - 1, 0}, {1, 1}, {3*repairRefill + repairRefill/2, 3}, {repairRefill / 2, 1}, {24 * time.Hour, repairBurst},
	} {
		now = now.Add(step.later)
		if got := drain(); got != step.want {
			t.Errorf("after another %s: %d, want %d", step.later, got, step.want)
		}
	}
}
