// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

func openDir(t *testing.T, name string) *FD {
	t.Helper()
	fd, err := Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fd.Close() })
	return fd
}

// TestOpenEntryStays: neither way leaves the directory or its mount, or follows a link.
func TestOpenEntryStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600), os.Symlink("file", filepath.Join(dir, "link")),
		os.Mkdir(filepath.Join(dir, "dir"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for how, open := range map[string]func(*FD, string) (*FD, error){"openat2": OpenEntry, "by hand": func(dir *FD, name string) (*FD, error) {
		fd, _, err := Walk{Root: dir, NoLinks: true, Beneath: true, OneMount: true}.Resolve(name)
		return fd, err
	}} {
		for _, c := range []struct {
			dir, name string
			want      error
		}{
			{dir, "file", nil}, {dir, "dir", nil}, {dir, "link", ELOOP}, {dir, "none", ENOENT}, {"/", "proc", EXDEV},
		} {
			fd, err := open(openDir(t, c.dir), c.name)
			fd.Close()
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %q in %q: %v, want %v", how, c.name, c.dir, err, c.want)
			}
		}
	}
	for _, name := range []string{"", ".", "..", "dir/x", "../x", "/etc", "x\x00"} {
		if _, err := OpenEntry(openDir(t, dir), name); !errors.Is(err, EINVAL) {
			t.Errorf("open %q: %v, want EINVAL", name, err)
		}
		if err := RemoveDirAt(openDir(t, dir), name); !errors.Is(err, EINVAL) {
			t.Errorf("remove %q: %v, want EINVAL", name, err)
		}
	}
}

func TestRemoveTakesNothingElse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600), os.Symlink("full", filepath.Join(dir, "link")),
		os.MkdirAll(filepath.Join(dir, "full", "x"), 0o700), os.Mkdir(filepath.Join(dir, "empty"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	at := openDir(t, dir)
	for _, c := range []struct {
		remove func(*FD, string) error
		name   string
		want   error
	}{
		{RemoveDirAt, "full", ENOTEMPTY}, {RemoveDirAt, "file", ENOTDIR}, {RemoveDirAt, "link", ENOTDIR}, {RemoveFileAt, "empty", EISDIR},
		{RemoveDirAt, "empty", nil}, {RemoveFileAt, "file", nil}, {RemoveFileAt, "file", ENOENT},
	} {
		if err := c.remove(at, c.name); !errors.Is(err, c.want) {
			t.Errorf("remove %q: %v, want %v", c.name, err, c.want)
		}
	}
	names, more, err := ListDir(at, 10)
	slices.Sort(names)
	if err != nil || more || !slices.Equal(names, []string{"full", "link"}) {
		t.Errorf("left: %q, more %v, %v", names, more, err)
	}
}

func TestListDirIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 3000 {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if names, more, err := ListDir(openDir(t, dir), 3000); err != nil || more || len(names) != 3000 {
		t.Errorf("%d names, more %v, %v", len(names), more, err)
	}
	if names, more, err := ListDir(openDir(t, dir), 100); err != nil || !more || len(names) >= 3000 {
		t.Errorf("at most 100: %d names, more %v, %v", len(names), more, err)
	}
}

func TestReadHead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	if err := os.WriteFile(name, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int]string{0: "", 3: "123", 5: "12345", 100: "12345"} {
		if text, err := ReadHead(openDir(t, name), most); err != nil || string(text) != want {
			t.Errorf("at most %d: %q, %v", most, text, err)
		}
	}
	if _, err := ReadHead(openDir(t, dir), 10); !errors.Is(err, EINVAL) {
		t.Errorf("a directory: %v, want EINVAL", err)
	}
	st, err := openDir(t, name).Stat(StatBorn)
	if age := time.Since(st.Born); err != nil || st.Has(StatBorn) && (age < -time.Minute || age > time.Minute) {
		t.Errorf("made %v, %v", st.Born, err)
	}
}
