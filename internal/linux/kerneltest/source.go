// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// Source is a file or directory that is bound to a point, a change of it, and the kernel's facts about the mount from
// then on.
type Source struct {
	Path  string // of the source
	Point string // where it is bound

	Root    string // of the mount, with the mark if it is to have one
	Deleted bool   // it is to have the mark
	Nlink   uint32 // how many names the content is to have; a directory has two
	Dir     bool
	Same    bool   // the source's path is to lead to the content that is bound
	FSType  string // of the source

	then func() error
}

// Happen changes the source.
func (s *Source) Happen(t testing.TB) {
	t.Helper()
	if err := s.then(); err != nil {
		t.Fatal(err)
	}
}

// EachSource runs a test on every state that the source of a bind mount can be
// in. Nothing has happened to it yet. The state is skipped whose file system
// cannot be mounted here.
func EachSource(t *testing.T, test func(t *testing.T, s *Source)) {
	t.Helper()
	for name, row := range localSources {
		t.Run(name, func(t *testing.T) { test(t, row.bring(t)) })
	}
	t.Run("FUSE directory whose server forgot it", func(t *testing.T) { test(t, forgottenFUSE(t)) })
	t.Run("removed cgroup", func(t *testing.T) { test(t, removedCgroup(t)) })
}

// localSource is a source on a file system that the kernel knows all about. The
// paths are below its root.
type localSource struct {
	path string
	dir  bool
	then func(path string) error
	want Source
}

const oddName = "/sp ace\ttab\nnl\\040#x"

var (
	alive    = Source{Nlink: 1, Same: true}
	gone     = Source{Deleted: true, Nlink: 0}
	aliveDir = Source{Nlink: 2, Same: true}
)

var localSources = map[string]localSource{
	"file":                              {path: "/d/file", then: nothing, want: alive},
	"directory":                         {path: "/d/dir", dir: true, then: nothing, want: aliveDir},
	"odd name":                          {path: "/d" + oddName, then: nothing, want: alive},
	"odd name, unlinked":                {path: "/d" + oddName, then: os.Remove, want: gone},
	"odd name on the way":               {path: oddName + oddName, then: os.Remove, want: gone},
	"non-ASCII name":                    {path: "/d/ünï-文\xff", then: nothing, want: alive},
	"non-ASCII name, unlinked":          {path: "/d/ünï-文\xff", then: os.Remove, want: gone},
	"name ends in (deleted)":            {path: "/d/x (deleted)", then: nothing, want: alive},
	"name is deleted":                   {path: "/deleted", then: nothing, want: alive},
	"name is deleted, in deleted":       {path: "/deleted/deleted", then: nothing, want: alive},
	"name is deleted, unlinked":         {path: "/deleted", then: os.Remove, want: gone},
	"unlinked":                          {path: "/d/file", then: os.Remove, want: gone},
	"replaced by rename":                {path: "/d/file", then: renameOver, want: gone},
	"created again":                     {path: "/d/file", then: recreate, want: gone},
	"directory, removed":                {path: "/d/dir", dir: true, then: os.Remove, want: gone},
	"directory, created again":          {path: "/d/dir", dir: true, then: recreateDir, want: gone},
	"directory, parents removed":        {path: "/d/e/dir", dir: true, then: removeParents, want: gone},
	"unlinked, other hard link":         {path: "/d/file", then: keepLink, want: Source{Deleted: true, Nlink: 1}},
	"moved away and created again":      {path: "/d/file", then: moveAway, want: Source{Root: "/d/file.bak", Nlink: 1}},
	"moved away, nothing created again": {path: "/d/file", then: rename, want: Source{Root: "/d/file.bak", Nlink: 1}},
	"parent renamed": {
		path: "/d/file", then: func(path string) error { return rename(filepath.Dir(path)) },
		want: Source{Root: "/d.bak/file", Nlink: 1},
	},
}

// bring makes the source on a new file system, and binds it.
func (l localSource) bring(t *testing.T) *Source {
	t.Helper()
	root := mountOn(t, "tmpfs")
	s := l.want
	s.Path, s.Point, s.Dir, s.FSType = root+l.path, filepath.Join(t.TempDir(), "point"), l.dir, "tmpfs"
	if s.Root == "" {
		s.Root = l.path
	}
	if s.Deleted {
		s.Root += "//deleted"
	}
	s.then = func() error { return l.then(s.Path) }
	if err := os.MkdirAll(filepath.Dir(s.Path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := create(s.Path, l.dir); err != nil {
		t.Fatal(err)
	}
	bind(t, &s)
	return &s
}

// forgottenFUSE carries the mark, though nothing was removed.
func forgottenFUSE(t *testing.T) *Source {
	t.Helper()
	dir := t.TempDir()
	FUSE(t, dir)
	s := &Source{
		Path: filepath.Join(dir, "moving"), Point: filepath.Join(t.TempDir(), "point"),
		Root: "/moving//deleted", Deleted: true, Nlink: 2, Dir: true, FSType: "fuse",
	}
	s.then = func() error {
		_, err := os.Stat(s.Path) // finds another directory now
		return err
	}
	bind(t, s)
	return s
}

// removedCgroup does not carry the mark, though it is gone: its file system
// makes up its own roots.
func removedCgroup(t *testing.T) *Source {
	t.Helper()
	root := mountOn(t, "cgroup2")
	name := "/kubediag-test-" + strconv.Itoa(os.Getpid())
	s := &Source{
		Path: root + name, Point: filepath.Join(t.TempDir(), "point"),
		Root: name, Nlink: 2, Dir: true, FSType: "cgroup2",
	}
	s.then = func() error { return os.Remove(s.Path) }
	if err := os.Mkdir(s.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(s.Path) })
	bind(t, s)
	return s
}

// mountOn mounts a file system of that type for as long as the test runs, and
// skips the test if that cannot be done here.
func mountOn(t *testing.T, fsType string) string {
	t.Helper()
	dir := t.TempDir()
	err := sys.NewMount("none", dir, fsType, "")
	if errors.Is(err, sys.ENODEV) || errors.Is(err, sys.EPERM) || errors.Is(err, sys.EBUSY) {
		t.Skipf("kernel lacks %s, or does not let it be mounted here: %v", fsType, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { systest.UnmountPath(dir, true) })
	return dir
}

func bind(t *testing.T, s *Source) {
	t.Helper()
	if err := create(s.Point, s.Dir); err != nil {
		t.Fatal(err)
	}
	if err := sys.BindMount(s.Path, s.Point); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { systest.UnmountPath(s.Point, true) })
}

func create(path string, dir bool) error {
	if dir {
		return os.Mkdir(path, 0o700)
	}
	return os.WriteFile(path, nil, 0o600)
}

// The things that happen.

func nothing(string) error { return nil }

func rename(path string) error { return os.Rename(path, path+".bak") }

func recreate(path string) error { return errors.Join(os.Remove(path), create(path, false)) }

func recreateDir(path string) error { return errors.Join(os.Remove(path), create(path, true)) }

func renameOver(path string) error {
	return errors.Join(create(path+".new", false), os.Rename(path+".new", path))
}

func removeParents(path string) error {
	return errors.Join(os.Remove(path), os.Remove(filepath.Dir(path)), os.Remove(filepath.Dir(filepath.Dir(path))))
}

func keepLink(path string) error { return errors.Join(os.Link(path, path+".link"), os.Remove(path)) }

func moveAway(path string) error { return errors.Join(rename(path), create(path, false)) }

// Leads reports whether the source's path leads to an inode with that number.
func (s *Source) Leads(inode uint64) bool {
	fd, err := sys.Lookup(s.Path)
	if err != nil {
		return false
	}
	defer fd.Close()
	st, err := fd.Stat(sys.StatIno)
	return err == nil && st.Ino == inode
}
