// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"slices"
	"testing"
)

func TestNames(t *testing.T) {
	t.Parallel()
	list := Names()
	if !slices.IsSorted(list) || len(slices.Compact(slices.Clone(list))) != len(list) {
		t.Errorf("names = %q, want them in order and each once", list)
	}
	for _, name := range list {
		if !Known(name) {
			t.Errorf("%q is listed but not known", name)
		}
	}
	list[0] = "changed"
	if Known("changed") || Known("") || Known("MountInfoCollector") || Known("subpathRemountRecover/") {
		t.Error("a name that is none is known")
	}
}
