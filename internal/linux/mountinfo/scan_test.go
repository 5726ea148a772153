// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEachDeletedAndEachDevice(t *testing.T) {
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
	var deleted, device, first []int
	if err := EachDeleted(text, collect(&deleted, 99)); err != nil {
		t.Fatal(err)
	}
	if err := EachDevice(text, 0, 51, collect(&device, 99)); err != nil {
		t.Fatal(err)
	}
	if err := EachDevice(text, 0, 51, collect(&first, 1)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]int{{69}, {80, 81, 82}, {80}}, [][]int{deleted, device, first}); diff != "" {
		t.Error(diff)
	}
}

// TestFiltersLookAtTheirColumnOnly: marks and devices elsewhere do not count.
func TestFiltersLookAtTheirColumnOnly(t *testing.T) {
	t.Parallel()
	text := []byte("7 0 0:1 / /x//deleted rw - cifs //deleted rw,a=//deleted\n" +
		"7 7 0:70 //deleted /7:0 rw - ext4 7:0 rw,7:0\n")
	count := 0
	more := func(Line) bool { count++; return true }
	if err := EachDeleted(text, more); err != nil {
		t.Fatal(err)
	}
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
	} {
		never := func(Line) bool { t.Errorf("%s: called", name); return true }
		if err := EachDeleted([]byte(text), never); err == nil && name != "no device" {
			t.Errorf("%s: deleted accepts it", name)
		}
		if err := EachDevice([]byte(text), 0, 5, never); err == nil && name != "no root" {
			t.Errorf("%s: device accepts it", name)
		}
	}
}

func TestScannersDoNotAllocate(t *testing.T) {
	text := nodeText()
	str := string(text)
	n := 0
	count := func(Line) bool { n++; return true }
	for name, scan := range map[string]func(){
		"deleted": func() { _ = EachDeleted(text, count) },
		"device":  func() { _ = EachDevice(text, 7, 0, count) },
		"scanner": func() {
			for s := NewScanner(str); s.Scan(); {
				n++
			}
		},
	} {
		if allocs := testing.AllocsPerRun(10, scan); allocs != 0 {
			t.Errorf("%s: %v allocations, want none", name, allocs)
		}
	}
	if n == 0 {
		t.Error("nothing was found")
	}
}
