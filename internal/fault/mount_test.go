// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import "testing"

func TestSameMount(t *testing.T) {
	t.Parallel()
	m := Mount{ID: 5, MountInfoID: 1, ParentID: 2, Namespace: 3, Device: "0:49", Root: "/", Point: "/p"}
	for name, c := range map[string]struct {
		change func(*Mount)
		want   bool
	}{
		"the same":                  {func(*Mount) {}, true},
		"another number":            {func(m *Mount) { m.ID = 6 }, false},
		"moved":                     {func(m *Mount) { m.ParentID = 9 }, true},
		"no number":                 {func(m *Mount) { m.ID = 0 }, true},
		"no number, another parent": {func(m *Mount) { m.ID, m.ParentID = 0, 9 }, false},
		"no number, another root":   {func(m *Mount) { m.ID, m.Root = 0, "/x" }, false},
		"no number, another point":  {func(m *Mount) { m.ID, m.Point = 0, "/y" }, false},
		"no number, another device": {func(m *Mount) { m.ID, m.Device = 0, "7:2" }, false},
		"another namespace":         {func(m *Mount) { m.Namespace = 4 }, false},
	} {
		other := m
		c.change(&other)
		if got := m.Same(other); got != c.want || other.Same(m) != got {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
