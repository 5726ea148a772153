// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOwnFilesAreNoOthers checks that files of the thread are not open in the process, and that later files of the
// process are not open on the thread.
func TestOwnFilesAreNoOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	err := WithOwnFDTable(func() error {
		fd, err := Lookup(dir)
		if err != nil {
			return err
		}
		defer fd.Close()
		own, err := ReadlinkProc(ThreadProc("fd/" + fd.String()))
		if err != nil || own != dir {
			t.Errorf("on the thread it is %q, %v", own, err)
		}
		if process, _ := ReadlinkProc("self/fd/" + fd.String()); process == dir {
			t.Error("the process has it open")
		}
		again, err := fd.Reopen()
		if err != nil {
			return err
		}
		defer again.Close()
		if link, err := ReadlinkProc(ThreadProc("fd/" + again.String())); err != nil || link != dir {
			t.Errorf("opened again it is %q, %v", link, err)
		}
		_, err = fd.FDMountID()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAskingALocalDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 500 {
		f, err := os.CreateTemp(dir, "a-name-that-takes-some-space-*")
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	fd, err := Lookup(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	st, err := fd.StatForceSync(StatType | StatNlink | StatIno)
	if err != nil || !st.IsDir() || st.Nlink == 0 || st.Ino == 0 {
		t.Errorf("stat %+v, %v", st, err)
	}
	if readOnly, err := fd.FileSystemReadOnly(); readOnly || err != nil {
		t.Errorf("read-only %v, %v", readOnly, err)
	}
	before, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := fd.OpenEntries()
	if err != nil {
		t.Fatal(err)
	}
	defer entries.Close()
	if err := entries.ReadSomeEntries(); err != nil {
		t.Error(err)
	}
	if after, err := os.Stat(dir); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("changed: %v", err)
	}
	file, err := Lookup(filepath.Join(dir, firstEntry(t, dir)))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.OpenEntries(); err != ENOTDIR {
		t.Errorf("entries of a file: %v", err)
	}
}

func firstEntry(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatal(err)
	}
	return entries[0].Name()
}
