// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
)

// gcPercent is the percentage in force.
func gcPercent() int {
	percent := debug.SetGCPercent(-1)
	debug.SetGCPercent(percent)
	return percent
}

// TestDelayCollection: the first collection sets the percentage for those that follow.
func TestDelayCollection(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	percent, limit := debug.SetGCPercent(70), debug.SetMemoryLimit(-1)
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	})
	for _, variable := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Setenv(variable, "100")
		if DelayCollection(); gcPercent() != 70 || debug.SetMemoryLimit(-1) != limit {
			t.Errorf("with %s: percentage %d, limit %d", variable, gcPercent(), debug.SetMemoryLimit(-1))
		}
		t.Setenv(variable, "")
	}
	if DelayCollection(); gcPercent() != -1 || debug.SetMemoryLimit(-1) != collectionBegin {
		t.Errorf("before the first: percentage %d, limit %d", gcPercent(), debug.SetMemoryLimit(-1))
	}
	for debug.SetMemoryLimit(-1) != math.MaxInt64 && t.Context().Err() == nil {
		runtime.GC() // the cleanup comes soon after
	}
	if gcPercent() != growthPercent {
		t.Errorf("after the first: percentage %d", gcPercent())
	}
}
