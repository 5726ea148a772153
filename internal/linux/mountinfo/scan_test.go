// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEachDevice(t *testing.T) {
	t.Parallel()
	text := []byte(recorded(t, "tricky.mountinfo"))
	collect := func(into *[]int, max int) func(Line) bool {
		return func(l Line) bool {
			m, err := l.Mount()
			if err != nil {
				t.Fatal(err)
			}
			*into = append(*into, m.ID)
			return len(*into) < max
		}
	}
	var device, first []int
	if err := EachDevice(text, 0, 51, collect(&device, 99)); err != nil {
		t.Fatal(err)
	}
	if err := EachDevice(text, 0, 51, collect(&first, 1)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]int{{80, 81, 82}, {80}}, [][]int{device, first}); diff != "" {
		t.Error(diff)
	}
}

func TestEachBelow(t *testing.T) {
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
		var got []int
		err := EachBelow([]byte(text), dir, func(l Line) bool {
			m, err := l.Mount()
			got = append(got, m.ID)
			return err == nil
		})
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("below %q: %v %s", dir, err, diff)
		}
	}
}

// TestEachDeviceReadsOneColumn: a device elsewhere does not count.
func TestEachDeviceReadsOneColumn(t *testing.T) {
	t.Parallel()
	text := []byte("7 7 0:70 / /7:0 rw - ext4 7:0 rw,7:0\n")
	count := 0
	more := func(Line) bool { count++; return true }
	if err := EachDevice(text, 7, 0, more); err != nil {
		t.Fatal(err)
	}
	if count != 0 {
		t.Errorf("%d lines found, want none", count)
	}
}

func TestFiltersRefuseBadLines(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty":     "\n",
		"one word":  "1\n",
		"no device": "1 2 x:4 / /p rw - t t rw\n",
		"no root":   "1 2 0:4  /p rw - t t rw\n",
		"no point":  "1 2 0:4 /  rw - t t rw\n",
	} {
		never := func(Line) bool { t.Errorf("%s: called", name); return true }
		if err := EachDevice([]byte(text), 0, 5, never); err == nil && name != "no root" && name != "no point" {
			t.Errorf("%s: device accepts it", name)
		}
		if err := EachBelow([]byte(text), "/x", never); err == nil && name != "no device" && name != "no root" {
			t.Errorf("%s: below accepts it", name)
		}
	}
}

func TestFiltersDoNotAllocate(t *testing.T) {
	text := nodeText()
	n := 0
	count := func(Line) bool { n++; return true }
	for name, scan := range map[string]func(){
		"device": func() { _ = EachDevice(text, 7, 0, count) },
		"below":  func() { _ = EachBelow(text, "/var/lib/kubelet/pods", count) },
	} {
		if allocs := testing.AllocsPerRun(10, scan); allocs != 0 {
			t.Errorf("%s: %v allocations, want none", name, allocs)
		}
	}
	if n == 0 {
		t.Error("nothing was found")
	}
}
