// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLookupAndWalkAgree holds the way of old kernels to that of new ones.
func TestLookupAndWalkAgree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "a/b"), 0o700),
		os.WriteFile(filepath.Join(dir, "a/file"), nil, 0o600),
		os.Symlink("b", filepath.Join(dir, "a/link")),
		os.Symlink("/", filepath.Join(dir, "a/root")),
		os.Symlink("none", filepath.Join(dir, "a/broken")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := Lookup(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for path, want := range map[string]error{
		"/":              nil,
		"/a":             nil,
		"/a/b":           nil,
		"//a///b/":       nil,
		"/a/file":        nil,
		"/a/./b":         nil,
		"/a/link":        ELOOP,
		"/a/link/x":      ELOOP,
		"/a/root/tmp":    ELOOP,
		"/a/broken":      ELOOP,
		"/a/none":        ENOENT,
		"/a/none/x":      ENOENT,
		"/a/file/x":      ENOTDIR,
		"/a/../a":        EINVAL,
		"a":              EINVAL,
		"":               EINVAL,
		"/a\x00b":        EINVAL,
		"/" + longName(): unix.ENAMETOOLONG,
	} {
		checkLookup(t, "LookupIn", path, want, func() (*FD, error) { return LookupIn(root, path) })
		checkLookup(t, "walk", path, want, func() (*FD, error) {
			if err := checkPath(path); err != nil {
				return nil, err
			}
			return walk(root.Int(), path)
		})
		if !strings.HasPrefix(path, "/") {
			continue
		}
		whole := dir + path
		checkLookup(t, "Lookup", whole, want, func() (*FD, error) { return Lookup(whole) })
	}
}

func longName() string { return strings.Repeat("x", 300) }

func checkLookup(t *testing.T, what, path string, want error, lookup func() (*FD, error)) {
	t.Helper()
	fd, err := lookup()
	if err == nil {
		defer fd.Close()
	}
	if !errors.Is(err, want) {
		t.Errorf("%s of %q: %v, want %v", what, path, err, want)
	}
}

func TestStatFallsBackBefore411(t *testing.T) {
	t.Parallel()
	dir, err := Lookup(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	want, err := dir.Stat(StatType | StatNlink | StatIno)
	if err != nil {
		t.Fatal(err)
	}
	got, err := fstatat(dir.Int(), "", noSync|unix.AT_EMPTY_PATH)
	if err != nil {
		t.Fatal(err)
	}
	if got.Ino != want.Ino || got.Nlink != want.Nlink || got.Major != want.Major || got.Minor != want.Minor || !got.IsDir() {
		t.Errorf("fstatat %+v, statx %+v", got, want)
	}
	if got.Has(StatMountID) || got.RootKnown {
		t.Errorf("fstatat claims to know the mount: %+v", got)
	}
}

func TestCloseTwice(t *testing.T) {
	t.Parallel()
	fd, err := Lookup("/")
	if err != nil {
		t.Fatal(err)
	}
	if err := fd.Close(); err != nil {
		t.Error(err)
	}
	if err := fd.Close(); err != nil || fd.Int() != -1 {
		t.Errorf("second close: %v, number %d", err, fd.Int())
	}
	if err := (*FD)(nil).Close(); err != nil {
		t.Error(err)
	}
}
