// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mount

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// seen is what Inspect is to say about a mount, whichever source it asks.
type seen struct {
	Root    string
	Deleted bool
	Gone    bool
	Dir     bool
}

// TestInspectConformance brings about each state that a bind mount's source can
// be in, and looks at it through every source.
func TestInspectConformance(t *testing.T) {
	const odd = "sp ace\ttab\nnl\\040#x"
	for name, tc := range map[string]struct {
		source string
		dir    bool
		then   func(s scene) error
		want   seen
	}{
		"healthy file":           {"file", false, nothing, seen{Root: "/file"}},
		"healthy directory":      {"dir", true, nothing, seen{Root: "/dir", Dir: true}},
		"odd name":               {odd, false, nothing, seen{Root: "/" + odd}},
		"odd name, unlinked":     {odd, false, removed, seen{Root: "/" + odd + "//deleted", Deleted: true, Gone: true}},
		"name ends in (deleted)": {"x (deleted)", false, nothing, seen{Root: "/x (deleted)"}},
		"name is deleted":        {"deleted", false, nothing, seen{Root: "/deleted"}},
		"unlinked":               {"file", false, removed, seen{Root: "/file//deleted", Deleted: true, Gone: true}},
		"replaced by rename":     {"file", false, replaced, seen{Root: "/file//deleted", Deleted: true, Gone: true}},
		"directory removed":      {"dir", true, removed, seen{Root: "/dir//deleted", Deleted: true, Gone: true, Dir: true}},
		"another hard link":      {"file", false, linkedAndRemoved, seen{Root: "/file//deleted", Deleted: true}},
		"moved and created anew": {"file", false, movedAway, seen{Root: "/file.bak"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSceneOf(t, tc.source, tc.dir)
			must(t, tc.then(s))
			onEverySource(t, func(t *testing.T) {
				st := inspect(t, s.target)
				got := seen{Root: st.Root, Deleted: st.Deleted, Gone: st.Gone, Dir: st.Dir}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func nothing(scene) error { return nil }

func removed(s scene) error { return os.Remove(s.source) }

func replaced(s scene) error {
	if err := os.WriteFile(s.source+".new", nil, 0o600); err != nil {
		return err
	}
	return os.Rename(s.source+".new", s.source)
}

func linkedAndRemoved(s scene) error {
	if err := os.Link(s.source, s.source+".link"); err != nil {
		return err
	}
	return os.Remove(s.source)
}

func movedAway(s scene) error {
	if err := os.Rename(s.source, s.source+".bak"); err != nil {
		return err
	}
	return os.WriteFile(s.source, nil, 0o600)
}

func newSceneOf(t *testing.T, name string, dir bool) scene {
	t.Helper()
	root := t.TempDir()
	must(t, Tmpfs(root, 1<<20))
	t.Cleanup(func() { sys.UnmountPath(root, true) })
	s := scene{dir: root, source: filepath.Join(root, name), target: filepath.Join(root, "target")}
	if dir {
		must(t, os.Mkdir(s.source, 0o700))
		must(t, os.Mkdir(s.target, 0o700))
	} else {
		write(t, s.source)
		write(t, s.target)
	}
	must(t, Bind(s.source, s.target))
	return s
}

// TestInspectFUSEWhoseServerForgot is the false positive among the marks: the
// path is there, the file is alive, and the kernel says deleted.
func TestInspectFUSEWhoseServerForgot(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	kerneltest.FUSE(t, dir)
	must(t, Bind(filepath.Join(dir, "moving"), target))
	t.Cleanup(func() { sys.UnmountPath(target, true) })
	_, err := os.Stat(filepath.Join(dir, "moving")) // finds another directory now
	must(t, err)
	onEverySource(t, func(t *testing.T) {
		st := inspect(t, target)
		if !st.Deleted || st.Gone || st.Root != "/moving//deleted" || st.FSType != "fuse" {
			t.Errorf("state %+v, want deleted by the mark, but not gone", st)
		}
	})
}

// TestInspectRemovedCgroup is the other way round: the directory is gone, and
// nothing says so.
func TestInspectRemovedCgroup(t *testing.T) {
	cgroups, target := t.TempDir(), t.TempDir()
	must(t, sys.NewMount("none", cgroups, "cgroup2", ""))
	t.Cleanup(func() { sys.UnmountPath(cgroups, true) })
	group := filepath.Join(cgroups, "kubediag-test-"+filepath.Base(t.TempDir()))
	must(t, os.Mkdir(group, 0o700))
	must(t, Bind(group, target))
	t.Cleanup(func() { sys.UnmountPath(target, true) })
	must(t, os.Remove(group))
	onEverySource(t, func(t *testing.T) {
		st := inspect(t, target)
		if st.Deleted || st.Gone || st.FSType != "cgroup2" {
			t.Errorf("state %+v, want neither deleted nor gone", st)
		}
	})
}

// TestSourcesAgree compares everything that the sources say, not only what the
// tests above look at.
func TestSourcesAgree(t *testing.T) {
	kerneltest.Needs(t, sys.HasStatmount)
	s := newScene(t)
	must(t, SetPropagation(s.target, Shared, false))
	must(t, sys.RemountBindReadOnly(s.target))
	want := inspect(t, s.target)
	if want.Unique == 0 || want.Shared == 0 || !want.ReadOnly || want.Nlink != 1 {
		t.Errorf("state %+v, want a unique number, shared, read-only, one link", want)
	}
	for _, source := range []source{table{}, table{fdinfo: true}} {
		with(t, source, func(t *testing.T) {
			got := inspect(t, s.target)
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(ID{}, "Unique")); diff != "" {
				t.Errorf("%+v: %s", source, diff)
			}
			if !got.Same(want.ID) {
				t.Errorf("%v not the same as %v", got.ID, want.ID)
			}
		})
	}
}

func TestInspectRefuses(t *testing.T) {
	onEverySource(t, func(t *testing.T) {
		s := newScene(t)
		link := filepath.Join(s.dir, "link")
		must(t, os.Symlink(s.target, link))
		for name, tc := range map[string]struct {
			point string
			want  error
		}{
			"a file":                      {s.source, ErrNotMounted},
			"nothing":                     {filepath.Join(s.dir, "none"), sys.ENOENT},
			"a symbolic link to a mount":  {link, sys.ELOOP},
			"a symbolic link on the way":  {filepath.Join("/proc/self/root", s.target), sys.ELOOP},
			"a relative path":             {"target", sys.EINVAL},
			"a path that is not clean":    {s.dir + "/./target", sys.EINVAL},
			"a path that climbs":          {s.dir + "/../x", sys.EINVAL},
			"a path with a zero byte":     {s.target + "\x00", sys.EINVAL},
			"a file used as a directory":  {s.target + "/x", sys.ENOTDIR},
			"a name longer than any name": {"/" + string(make([]byte, 300)), sys.EINVAL},
		} {
			_, err := Inspect(tc.point)
			var op *Error
			if !errors.Is(err, tc.want) || !errors.As(err, &op) || op.Target != tc.point {
				t.Errorf("%s: %v, want %v for %q", name, err, tc.want, tc.point)
			}
		}
	})
}

// TestInspectDoesNotWaitForAnyone: neither for a mount whose server is gone nor
// for one that never answers, nor below it.
func TestInspectDoesNotWaitForAnyone(t *testing.T) {
	onEverySource(t, func(t *testing.T) {
		dir := t.TempDir()
		server := kerneltest.FUSE(t, dir)
		if st := inspect(t, dir); st.Deleted || st.FSType != "fuse" {
			t.Errorf("state %+v, want a FUSE mount", st)
		}
		_, err := Inspect(filepath.Join(dir, "hang"))
		if !errors.Is(err, ErrMayBlock) {
			t.Errorf("inspect below: %v, want ErrMayBlock", err)
		}
		server.Kill()
		if st := inspect(t, dir); st.FSType != "fuse" {
			t.Errorf("state %+v, want a FUSE mount", st)
		}
	})
}
