// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"runtime"
	"testing"
)

// TestRepairsGrowWithTheBinds: eight times as many binds of a pod cost a Diagnosis eight times the memory, give or take, and not 64 times: a tenant
// chooses their number. The bytes that are allocated stand for the work, as they do not depend on other programs of the machine. For
// that, no other test runs meanwhile.
func TestRepairsGrowWithTheBinds(t *testing.T) {
	const few, times = 50, 8
	workOf(t, few) // compiles expressions that all runs share
	one, many := workOf(t, few), workOf(t, few*times)
	t.Logf("%d KiB for %d binds, %d KiB for %d", one>>10, few, many>>10, few*times)
	if many > 2*times*one {
		t.Errorf("%d times as many binds took %d times as much", times, many/one)
	}
}

// workOf returns the bytes that the repair of so many binds of a pod allocates.
func workOf(t *testing.T, binds uint64) uint64 {
	t.Helper()
	w := newWorld(t)
	w.kernel.mounts = nil
	for i := range binds {
		w.kernel.mounts = append(w.kernel.mounts, 7+i)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d := w.run(t, diagnosis())
	runtime.ReadMemStats(&after)
	if done := len(d.Status.Operations[3].Actions); done != int(binds) {
		t.Fatalf("%d of %d binds were repaired", done, binds)
	}
	return after.TotalAlloc - before.TotalAlloc
}
