// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLines(t *testing.T) {
	t.Parallel()
	var ids []int
	for line := range Lines([]byte(recorded(t, "tricky.mountinfo"))) {
		if id, _, major, minor, ok := line.Numbers(); ok && major == 0 && minor == 51 {
			ids = append(ids, id)
		}
		if len(ids) == 2 {
			break // of three
		}
	}
	if diff := cmp.Diff([]int{80, 81}, ids); diff != "" {
		t.Error(diff)
	}
}

func TestBelow(t *testing.T) {
	t.Parallel()
	const text = `1 0 0:1 / / rw - tmpfs none rw
2 1 0:2 / /a rw - tmpfs none rw
3 1 0:3 / /a/b rw - tmpfs none rw
4 3 0:4 / /a/b/c rw - tmpfs none rw
5 1 0:5 / /a/bc rw - tmpfs none rw
6 1 0:6 / /a\040b rw - tmpfs none rw
7 1 0:7 / /a\040b/c\134d rw - tmpfs none rw
8 1 0:8 / /a\040bc/d rw - tmpfs none rw
9 1 0:9 /a/b/x /x /a/b/y - tmpfs /a/b/z rw,/a/b/z
10 4 0:10 / /a/b/c rw - tmpfs none rw
11 1 0:11 / /a#b/c rw - tmpfs none rw
12 1 0:12 / /a\043b/d rw - tmpfs none rw
`
	for dir, want := range map[string][]int{
		"/":       {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
		"/a":      {3, 4, 5, 10},
		"/a/b":    {4, 10},
		"/a/b/c":  nil,
		"/a/":     nil,
		"/a b":    {7},
		`/a\040b`: nil,
		"/a#b":    {11, 12},
		"/none":   nil,
	} {
		got := idsBelow(t, text, dir)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("below %q: %s", dir, diff)
		}
	}
}

func TestBadLines(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty":     "",
		"one word":  "1",
		"no device": "1 2 x:4 / /p rw - t t rw",
		"no root":   "1 2 0:4  /p rw - t t rw",
		"no point":  "1 2 0:4 /  rw - t t rw",
	} {
		line := Line(text)
		if _, _, _, _, ok := line.Numbers(); ok != (name == "no root" || name == "no point") {
			t.Errorf("%s: numbers: %v", name, ok)
		}
		if _, err := line.Below("/x"); (err == nil) != (name == "no device" || name == "no root") {
			t.Errorf("%s: below: %v", name, err)
		}
	}
}

func TestLinesDoNotAllocate(t *testing.T) {
	text, n := []byte(recorded(t, "kubelet-1.18.mountinfo")), 0
	allocs := testing.AllocsPerRun(10, func() {
		for line := range Lines(text) {
			_, _, major, _, _ := line.Numbers()
			kind, _ := line.FSType()
			below, _ := line.Below("/var/lib/kubelet/pods")
			if below && major != 0 && len(kind) > 0 {
				n++
			}
		}
	})
	if allocs != 0 || n == 0 {
		t.Errorf("%v allocations for %d lines, want none for some", allocs, n)
	}
}

// idsBelow lists the mounts below dir that Lines finds.
func idsBelow(t *testing.T, text, dir string) (ids []int) {
	t.Helper()
	for line := range Lines([]byte(text)) {
		id, _, _, _, _ := line.Numbers()
		below, err := line.Below(dir)
		if err != nil {
			t.Fatal(err)
		}
		if below {
			ids = append(ids, id)
		}
	}
	return ids
}
