// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ids(mounts []Mount) []int {
	var ids []int
	for _, m := range mounts {
		ids = append(ids, m.ID)
	}
	return ids
}

// top and on give the number of the mount that is found.
func top(t *Table, point string) []int { return idOf(t.Top(point)) }

func on(t *Table, path string) []int { return idOf(t.On(path)) }

func idOf(m Mount, ok bool) []int {
	if !ok {
		return nil
	}
	return []int{m.ID}
}

// TestTableFindsWhatTheKernelFinds asks about a table recorded from a kernel:
// three file systems stacked at /k/stack, one of them over a mount below it,
// and /k/h mounted over with the same names below.
func TestTableFindsWhatTheKernelFinds(t *testing.T) {
	t.Parallel()
	table := recordedTable(t, "tricky.mountinfo")
	for name, tc := range map[string]struct{ got, want []int }{
		"top of a stack":                 {top(table, "/k/stack"), []int{72}},
		"top of a stack of one":          {top(table, "/k/stack/in"), []int{73}},
		"top of what has mounts below":   {top(table, "/k/h"), []int{76}},
		"top leaves out what is hidden":  {top(table, "/k/h/in"), []int{77}},
		"all has what is hidden":         {ids(table.All("/k/h/in")), []int{75, 77}},
		"no mount at a directory":        {top(table, "/k/d"), nil},
		"no mount at a prefix of a name": {top(table, "/k/stac"), nil},
		"root":                           {top(table, "/"), []int{63}},
		"path over a stack":              {on(table, "/k/stack/in/x/y"), []int{73}},
		"path beside a like name":        {on(table, "/k/a/x"), []int{78}},
		"path with a longer like name":   {on(table, "/k/ab"), []int{79}},
		"path to a directory":            {on(table, "/k/abc"), []int{64}},
		"below, by component":            {ids(table.Under("/k/a")), []int{78}},
		"below, hidden ones too":         {ids(table.Under("/k/h")), []int{74, 75, 76, 77}},
		"below nothing":                  {ids(table.Under("/k/pods")), nil},
		"children":                       {ids(table.Children(74)), []int{75, 76}},
		"names with spaces and more":     {top(table, "/k/sp ace\ttab\nnl\\040#x"), []int{66}},
		"a path that is not absolute":    {ids(table.Under("k")), nil},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if all := table.Under("/"); len(all) != len(table.Mounts()) {
		t.Errorf("%d of %d mounts below the root", len(all), len(table.Mounts()))
	}
}

func TestTableTopAndOn(t *testing.T) {
	t.Parallel()
	table := recordedTable(t, "tricky.mountinfo")
	if m, ok := table.Top("/k/h/in"); !ok || m.Source != "seen" {
		t.Errorf("top of /k/h/in: %v %v, want the one that is seen", m, ok)
	}
	if m, ok := table.Top("/k/h/in/x"); ok {
		t.Errorf("top of a directory: %v, want none", m)
	}
	if m, ok := table.On("/k/h/in/x"); !ok || m.ID != 77 {
		t.Errorf("mount under /k/h/in/x: %v %v, want 77", m, ok)
	}
	if m, ok := table.ByID(69); !ok || !m.Deleted() {
		t.Errorf("mount 69: %+v %v, want a deleted one", m, ok)
	}
	if m, ok := table.ByID(1); ok {
		t.Errorf("mount 1: %v, want none", m)
	}
}

// TestTableWithoutARoot is what a process in a chroot may see, and what only a
// forged text holds.
func TestTableWithoutARoot(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":        "",
		"no root mount":  "5 4 0:1 / /proc rw - proc proc rw\n",
		"own parent":     "5 5 0:1 / /p rw - t t rw\n",
		"circle":         "5 6 0:1 / / rw - t t rw\n6 5 0:1 / / rw - t t rw\n",
		"circle on root": "1 0 0:1 / / rw - t t rw\n5 6 0:1 / / rw - t t rw\n6 5 0:1 / / rw - t t rw\n",
	} {
		mounts, err := ParseBytes([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		table := NewTable(mounts)
		if m, ok := table.Top("/p"); ok {
			t.Errorf("%s: found %v", name, m)
		}
	}
	mounts, err := ParseBytes([]byte("1 1 0:1 / / rw - t t rw\n2 1 0:1 / / rw - t t rw\n1 2 0:1 / / rw - t t rw\n"))
	if err != nil {
		t.Fatal(err)
	}
	NewTable(mounts).On("/p") // the same number twice: comes back
}
