// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		os.Symlink("/", filepath.Join(dir, "a/top")),
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
		"/a/top/tmp":     ELOOP,
		"/a/broken":      ELOOP,
		"/a/none":        ENOENT,
		"/a/none/x":      ENOENT,
		"/a/file/x":      ENOTDIR,
		"/a/file/":       ENOTDIR,
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
			fd, _, err := Walk{Root: root, NoLinks: true}.Resolve(path)
			return fd, err
		})
		if !strings.HasPrefix(path, "/") {
			continue
		}
		whole := dir + path
		checkLookup(t, "Lookup", whole, want, func() (*FD, error) { return Lookup(whole) })
	}
}

func TestLookupBeneath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "in/..2021"), 0o700),
		os.WriteFile(filepath.Join(dir, "in/..2021/key"), nil, 0o600),
		os.Symlink("..2021", filepath.Join(dir, "in/..data")),
		os.Symlink("..data/key", filepath.Join(dir, "in/key")),
		os.Symlink("../in/..data", filepath.Join(dir, "in/around")),
		os.Symlink("../../etc", filepath.Join(dir, "in/out")),
		os.Symlink("/etc", filepath.Join(dir, "in/absolute")),
		os.Symlink("loop", filepath.Join(dir, "in/loop")),
		os.Symlink("none", filepath.Join(dir, "in/broken")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	top, err := Lookup(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	in, err := Lookup(filepath.Join(dir, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for path, want := range map[string]error{
		"in":               nil,
		"in/key":           nil, // through two links, as the kubelet lays them out
		"in/..data/key":    nil,
		"in/../in/key":     nil,
		"in/around/key":    nil,
		"in/out":           EXDEV,
		"in/out/passwd":    EXDEV,
		"in/absolute":      EXDEV,
		"/in":              EXDEV,
		"..":               EXDEV,
		"in/loop":          ELOOP,
		"in/broken":        ENOENT,
		"in/none":          ENOENT,
		"in/key/x":         ENOTDIR,
		"in/key/":          ENOTDIR,
		"in/key/..":        ENOTDIR,
		"":                 ENOENT,
		"in/" + longName(): unix.ENAMETOOLONG,
	} {
		checkLookup(t, "LookupBeneath", path, want, func() (*FD, error) { return LookupBeneath(top, path) })
		checkLookup(t, "Walk", path, want, func() (*FD, error) {
			fd, _, err := Walk{Root: top, Beneath: true, OneMount: true}.Resolve(path)
			return fd, err
		})
	}
	checkLookup(t, "LookupBeneath, link above dir", "around", EXDEV, func() (*FD, error) { return LookupBeneath(in, "around") })
	link, err := LookupBeneath(top, "in/key")
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	if st, err := link.Stat(StatType); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		t.Errorf("opened %+v, %v; want the file behind the link", st, err)
	}
}

// TestLookupBeneathStaysOnTheMount and takes no link of /proc.
func TestLookupBeneathStaysOnTheMount(t *testing.T) {
	t.Parallel()
	for dir, paths := range map[string]map[string]error{
		"/":     {"proc": EXDEV, "proc/self": EXDEV},
		"/proc": {"self/status": nil, "self/root": ELOOP, "self/fd/0": ELOOP, "self/exe": ELOOP, "self/ns/mnt": ELOOP, "mounts": nil},
	} {
		at, err := Lookup(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer at.Close()
		for path, want := range paths {
			checkLookup(t, "LookupBeneath "+dir, path, want, func() (*FD, error) { return LookupBeneath(at, path) })
			checkLookup(t, "Walk "+dir, path, want, func() (*FD, error) {
				fd, _, err := Walk{Root: at, Beneath: true, OneMount: true}.Resolve(path)
				return fd, err
			})
		}
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

// TestStatChanged: the time is that of the last link that came or went, not that of the last access.
func TestStatChanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(name, long, long); err != nil { // the time that is not asked for
		t.Fatal(err)
	}
	fd, err := Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	before, err := fd.Stat(StatChanged)
	if err != nil || !before.Has(StatChanged) || before.Changed.Location() != time.UTC {
		t.Fatalf("%+v, %v", before, err)
	}
	if st, err := fd.Stat(StatAccessed); err != nil || !st.Has(StatAccessed) || !st.Accessed.Equal(long) || st.Accessed.Location() != time.UTC {
		t.Errorf("accessed %v, want %v: %v", st.Accessed, long, err)
	}
	if ago := time.Since(before.Changed); ago < -time.Second || ago > time.Minute {
		t.Errorf("changed %v ago", ago)
	}
	awaitFileClock(t, dir, before.Changed)
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	after, err := fd.Stat(StatChanged | StatNlink)
	if err != nil || !after.Changed.After(before.Changed) || after.Nlink != 0 {
		t.Errorf("%v, after %v: %v", after, before, err)
	}
}

// awaitFileClock waits until files that are made get a later time: it may be
// ten milliseconds coarse.
func awaitFileClock(t *testing.T, dir string, after time.Time) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		name := filepath.Join(dir, "clock")
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(name)
		if err != nil || info.ModTime().After(after) {
			break
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
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
