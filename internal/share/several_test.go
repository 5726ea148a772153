// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package share

import (
	"fmt"
	"testing"
)

func TestSeveral(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		counts map[string]int
		needed int
		want   bool
	}{
		{nil, 1, false},
		{map[string]int{"tenant": 99}, 3, false},
		{map[string]int{"tenant": 99, "shop": 1}, 3, false},
		{map[string]int{"tenant": 99, "shop": 2}, 3, true},
		{map[string]int{"tenant": 3, "shop": 3}, 3, true},
		{map[string]int{"a": 1, "b": 1, "c": 1}, 3, true},
		{map[string]int{"a": 1, "b": 1}, 3, false},
		{map[string]int{"a": 1}, 1, false},
		{map[string]int{"a": 1, "b": 1}, 1, true},
		{map[string]int{"": 3}, 3, true},
		{map[string]int{"": 1, "tenant": 99}, 3, false},
		{map[string]int{"": 2}, 3, false},
	} {
		t.Run(fmt.Sprint(tc.counts, " of ", tc.needed), func(t *testing.T) {
			t.Parallel()
			if got := Several(tc.counts, tc.needed); got != tc.want {
				t.Errorf("%t, want %t", got, tc.want)
			}
		})
	}
}
