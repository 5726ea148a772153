// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import "testing"

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
