// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// TestDescriptorsOfAProcess opens many files. The list has each of them, and can inspect it. It does not have a file that was closed.
func TestDescriptorsOfAProcess(t *testing.T) {
	var wanted []int
	inodes := map[int]uint64{}
	dir := t.TempDir()
	for i := range 700 { // more than one answer of the kernel holds
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		st, err := StatPath(f.Name(), StatIno)
		if err != nil {
			t.Fatal(err)
		}
		wanted = append(wanted, int(f.Fd()))
		inodes[int(f.Fd())] = st.Ino
	}
	var pass Descriptors
	list, err := pass.Open("self")
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	for _, number := range wanted {
		st, err := list.Stat(number, StatIno)
		if !slices.Contains(list.Numbers, number) || err != nil || st.Ino != inodes[number] {
			t.Errorf("descriptor %d: %+v, %v", number, st, err)
		}
	}
	if list.More {
		t.Error("there are more")
	}
	if _, err := list.Stat(1<<20, StatIno); err != ENOENT {
		t.Errorf("descriptor that is not open: %v", err)
	}
}

func TestEntryNumber(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{"1": 1, "4194304": 4194304, "0": 0, "": -1, "self": -1, "1a": -1, ".": -1, "-1": -1, "99999999999999999999": -1} {
		n, ok := entryNumber([]byte(name))
		if ok != (want >= 0) || ok && n != want {
			t.Errorf("%q: %d, %t, want %d", name, n, ok, want)
		}
	}
}
