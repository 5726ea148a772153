// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"math/rand/v2"
	"slices"
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

// TestTableWithoutARoot has tables that a process in a chroot may see, and tables that only a forged text holds.
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

// TestOnFindsByWalking compares On with a walk over all children, for trees of mounts in all orders: stacked, hidden, side by side.
func TestOnFindsByWalking(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	points := []string{"/", "/a", "/a/b", "/a/b/c", "/ab", "/d"}
	for range 2000 {
		mounts := []Mount{{ID: 1, Parent: 0, Point: "/"}}
		for id := 2; id < 12; id++ {
			on := mounts[random.IntN(len(mounts))]
			point := points[random.IntN(len(points))]
			taken := slices.ContainsFunc(mounts, func(m Mount) bool { return m.Parent == on.ID && m.Point == point })
			if Within(on.Point, point) && !taken {
				mounts = append(mounts, Mount{ID: id, Parent: on.ID, Point: point})
			}
		}
		random.Shuffle(len(mounts), func(i, j int) { mounts[i], mounts[j] = mounts[j], mounts[i] })
		table := NewTable(mounts)
		for _, path := range append(points, "/a/b/c/x", "/x") {
			if got, want := on(table, path), []int{walk(mounts, path)}; !slices.Equal(got, want) {
				t.Fatalf("%q is on %v, want %v, of %+v", path, got, want, mounts)
			}
		}
	}
}

// walk is the ID of the mount that a path lies on, found the slow way from the mount 1.
func walk(mounts []Mount, path string) int {
	at := 1
	for {
		next := Mount{Point: path + "/more"}
		for _, m := range mounts {
			if m.Parent == at && Within(m.Point, path) && len(m.Point) < len(next.Point) {
				next = m
			}
		}
		if next.ID == 0 {
			return at
		}
		at = next.ID
	}
}

// TestDeepStack asks for each of many mounts at one place. A walk over the stack for each would take minutes.
func TestDeepStack(t *testing.T) {
	t.Parallel()
	const depth = 1 << 17
	mounts := []Mount{{ID: 1, Point: "/"}}
	for id := 2; id <= depth; id++ {
		mounts = append(mounts, Mount{ID: id, Parent: id - 1, Point: "/a", Minor: 7})
	}
	table := NewTable(mounts)
	for _, m := range mounts[1:] {
		if top, ok := table.Top(m.Point); !ok || top.ID != depth {
			t.Fatalf("top %+v, want number %d", top, depth)
		}
		if table.Position(m.ID) != m.ID-1 {
			t.Fatalf("position %d of mount %d", table.Position(m.ID), m.ID)
		}
	}
	if all, of := table.All("/a"), table.OfDevice(0, 7); len(all) != depth-1 || len(of) != depth-1 {
		t.Errorf("%d mounts at the place, %d of the device", len(all), len(of))
	}
}
