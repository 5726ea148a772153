// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"kubediag.org/kubediag/test/growthtest"
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

// FuzzJournalGrows holds that a journal makes no work that grows with the square of its records, of any kind. One that has only the first of them
// right is read as far as that.
func FuzzJournalGrows(f *testing.F) {
	const plan = `"kind":"plan","node":1,"boot":"b","plan":{"actions":[{"kind":"Unmount","target":"x"}]}`
	for _, part := range []string{
		`"kind":"attempt","node":1`, `"kind":"retry","node":1,"reason":"r"`, `"kind":"apply","node":1`, `"kind":"applied","node":1,"reason":"r","calls":[{},{}]`,
		`"kind":"verify","node":1`, `"kind":"plan","node":1,"boot":"b#","plan":{"actions":[{"kind":"Unmount","target":"x"},{"kind":"Unmount","target":"y"}]}`,
		`"kind":"done","node":1,"findings":[{"code":"a"},{"code":"b"}]`, `"kind":"end"`, `"kind":"`, "",
	} {
		f.Add(plan, part)
	}
	f.Fuzz(func(t *testing.T, first, part string) {
		growthtest.Check(t, 500, func(n int) func() {
			dir := t.TempDir()
			r, j := newRunner(t, dir), newJob(t, nil, gives("a", "1"))
			var text strings.Builder
			add := func(seq int, body string) {
				line := fmt.Sprintf(`{"seq":%d,"time":"2026-11-21T00:00:00Z",%s}`, seq, strings.ReplaceAll(strings.ReplaceAll(body, "#", fmt.Sprint(seq)), "\n", ""))
				text.WriteString(checksum([]byte(line)) + line + "\n")
			}
			add(1, fmt.Sprintf(`"kind":"begin","begin":{"version":%d,"uid":"uid-1","graph":%q}`, journalVersion, j.Graph.Hash()))
			add(2, `"kind":"attempt","node":1`)
			add(3, first)
			for i := range n {
				add(i+4, part)
			}
			must(t, os.WriteFile(journalPath(dir), []byte(text.String()), 0o600))
			return func() {
				if opened, _, err := r.openJournal(j); err == nil {
					opened.close()
				}
			}
		})
	})
}
