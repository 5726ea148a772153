// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

func TestFSTypeAgreesWithTheTable(t *testing.T) {
	dir := t.TempDir()
	kerneltest.FUSE(t, dir)
	table, err := Table(0)
	if err != nil {
		t.Fatal(err)
	}
	before := mountinfo.NewTable(slices.DeleteFunc(slices.Clone(table.Mounts()), func(m mountinfo.Mount) bool { return m.Point == dir }))
	for _, view := range []View{{}, {table}, {before}} {
		for _, name := range []string{"/", "/proc", filepath.Dir(dir), dir} {
			fd, err := view.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			got, err := view.FSType(fd)
			refused := view.NotHanging(name, fd)
			fd.Close()
			on, _ := table.On(name)
			if err != nil || got != on.FSType {
				t.Errorf("%q is on %q, %v, want %q", name, got, err, on.FSType)
			}
			if hangs := errors.Is(refused, ErrMayBlock); hangs != MayHang(on.FSType) {
				t.Errorf("%q, which is on %s, may hang: %v", name, on.FSType, hangs)
			}
		}
	}
}

// TestLookupFollowing has links lead onto a file system that never answers.
func TestLookupFollowing(t *testing.T) {
	top := t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	for _, err := range []error{
		os.MkdirAll(at("a/b"), 0o755), os.Mkdir(at("fuse"), 0o755), os.WriteFile(at("a/file"), nil, 0o600),
		os.Symlink("a/b", at("link")), os.Symlink(at("link"), at("absolute")), os.Symlink("../link/..", at("a/up")),
		os.Symlink("loop", at("loop")), os.Symlink("gone/x", at("broken")), os.Symlink("fuse", at("mounted")),
		os.Symlink("fuse/hang", at("hangs")), os.Symlink("mounted/hang", at("hangs too")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	kerneltest.FUSE(t, at("fuse"))
	table, err := Table(0)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		resolved string
		err      error
	}{
		"a/b": {"a/b", nil}, "a//b/": {"a/b", nil}, "link": {"a/b", nil}, "absolute": {"a/b", nil}, "a/up": {"a", nil},
		"a/up/file": {"a/file", nil}, "fuse": {"fuse", nil}, "loop": {"loop", sys.ELOOP}, "broken": {"gone/x", sys.ENOENT},
		"link/none": {"a/b/none", sys.ENOENT}, "a/up/file/x": {"a/file/x", sys.ENOTDIR}, "none": {"none", sys.ENOENT},
		"fuse/hang": {"fuse/hang", ErrMayBlock}, "fuse/hang/x": {"fuse/hang/x", ErrMayBlock}, "mounted": {"fuse", ErrMayBlock},
		"mounted/hang": {"fuse/hang", ErrMayBlock}, "hangs": {"fuse/hang", ErrMayBlock}, "hangs/x": {"fuse/hang/x", ErrMayBlock},
		"hangs too": {"fuse/hang", ErrMayBlock},
	} {
		for _, view := range []View{{}, {table}} {
			fd, resolved, err := view.LookupFollowing(top + "/" + name)
			fd.Close()
			if resolved != at(want.resolved) || !errors.Is(err, want.err) {
				t.Errorf("%q: %q, %v, want %q, %v", name, resolved, err, at(want.resolved), want.err)
			}
		}
	}
	if fd, _, err := (View{}).LookupFollowing("a/b"); !errors.Is(err, sys.EINVAL) {
		fd.Close()
		t.Errorf("relative: %v, want EINVAL", err)
	}
}
