// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"testing"

	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// TestReadAhead: a table that was read ahead serves one node that is ReadOnce, and before that those who want its text.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	n, err := Local(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	readText := func() *byte {
		text, err := n.ReadMounts()
		if err != nil || len(text) == 0 {
			t.Fatalf("%d bytes, %v", len(text), err)
		}
		return &text[0]
	}
	readTable := func() *mountinfo.Table {
		table, err := n.ReadOnce().Mounts(t.Context())
		if err != nil || len(table.Mounts()) == 0 {
			t.Fatal(err)
		}
		return table
	}
	if first := readText(); readText() == first {
		t.Error("two texts are one, though nothing was read ahead")
	}
	n.ReadAhead()
	text := readText()
	if readText() != text {
		t.Error("the text was read again")
	}
	ahead := n.ahead.table()
	if ahead == nil || readTable() != ahead {
		t.Error("the table was read again")
	}
	if readTable() == ahead || readText() == text {
		t.Error("a table that was taken serves again")
	}
	n.ReadAhead()
	n.ahead.at = n.ahead.at.Add(-2 * aheadAge)
	if text := n.ahead.unused(); text != nil || n.ahead.take() != nil {
		t.Errorf("an old table serves: %d bytes", len(text))
	}
	n.ReadAhead()
	if live := n.Live(); live.tables != nil {
		t.Error("a node that reads at each call has a table")
	}
	n.ahead.table()
	n.PID = 1 << 30 // of no process
	n.ReadAhead()
	if table := n.ahead.take(); table != nil {
		t.Error("a process that is not there has a table")
	}
}

// TestOnePass: within a pass, all who look get one table. Another pass, and a look outside of any, has its own.
func TestOnePass(t *testing.T) {
	t.Parallel()
	n, err := Local(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	within := InOnePass(t.Context())
	first, errFirst := n.Node(within)
	second, errSecond := n.Node(within)
	if errFirst != nil || errSecond != nil || first != second || first == n {
		t.Fatalf("two looks of one pass: %p and %p of %p, %v, %v", first, second, n, errFirst, errSecond)
	}
	tableOfFirst, err := first.Mounts(within)
	if err != nil {
		t.Fatal(err)
	}
	if tableOfSecond, err := second.Mounts(within); err != nil || tableOfSecond != tableOfFirst {
		t.Errorf("tables %p and %p, %v", tableOfFirst, tableOfSecond, err)
	}
	if again, err := first.Node(within); err != nil || again != first {
		t.Errorf("a node of the pass that is asked for itself: %p, %v, want %p", again, err, first)
	}
	if other, err := n.Node(InOnePass(t.Context())); err != nil || other == first {
		t.Errorf("another pass has the same node, %v", err)
	}
	if outside, err := n.Node(t.Context()); err != nil || outside != n {
		t.Errorf("outside of a pass: %p, %v, want %p", outside, err, n)
	}
}
