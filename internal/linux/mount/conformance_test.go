// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mount

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// expectedState is the State that Inspect must return for a mount, from any source of knowledge.
type expectedState struct {
	Root    string
	Deleted bool
	Gone    bool
	Nlink   uint32
	Dir     bool
	Same    bool // the path of the bind's source leads there
	FSType  string
}

// TestInspectConformance looks at every state that a bind mount's source can be
// in through every source of knowledge.
func TestInspectConformance(t *testing.T) {
	kerneltest.EachSource(t, func(t *testing.T, source *kerneltest.Source) {
		source.Happen(t)
		want := expectedState{
			Root: source.Root, Deleted: source.Deleted, Gone: source.Nlink == 0, Nlink: source.Nlink,
			Dir: source.Dir, Same: source.Same, FSType: source.FSType,
		}
		onEverySource(t, func(t *testing.T) {
			st := inspect(t, source.Point)
			got := expectedState{
				Root: st.Root, Deleted: st.Deleted, Gone: st.Gone, Nlink: st.Nlink,
				Dir: st.Dir, Same: source.Leads(st.Inode), FSType: st.FSType,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	})
}

// TestInspectSaysWhen: the time of a mount whose source was unlinked is that of
// the unlinking, however long ago that was.
func TestInspectSaysWhen(t *testing.T) {
	s := newScene(t)
	bound := inspect(t, s.target).Changed
	before := awaitFileClock(t, s.dir, bound)
	must(t, os.Remove(s.source))
	after := awaitFileClock(t, s.dir, time.Now())
	onEverySource(t, func(t *testing.T) {
		st := inspect(t, s.target)
		if !st.Changed.After(bound) || st.Changed.Before(before) || !st.Changed.Before(after) {
			t.Errorf("changed %v, removed between %v and %v", st.Changed, before, after)
		}
		text, err := json.Marshal(st)
		if want := `"changed":"` + st.Changed.Format(time.RFC3339Nano) + `"`; err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s has no %s: %v", text, want, err)
		}
	})
}

// awaitFileClock waits until a file that is made gets a time after t, and gives
// that: the clock of files may be ten milliseconds coarse.
func awaitFileClock(t *testing.T, dir string, after time.Time) time.Time {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		name := filepath.Join(dir, "clock")
		write(t, name)
		info, err := os.Stat(name)
		must(t, err)
		must(t, os.Remove(name))
		if info.ModTime().After(after) {
			return info.ModTime()
		}
	}
	t.Fatal("the clock of files stands still")
	return time.Time{}
}

func newSceneOf(t *testing.T, name string, dir bool) bindScene {
	t.Helper()
	root := t.TempDir()
	must(t, Tmpfs(root, 1<<20))
	t.Cleanup(func() { systest.UnmountPath(root, true) })
	s := bindScene{dir: root, source: filepath.Join(root, name), target: filepath.Join(root, "target")}
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

// TestSourcesAgree compares every field of the sources, not only those that the tests above check.
func TestSourcesAgree(t *testing.T) {
	kerneltest.Needs(t, sys.HasStatmount)
	s := newScene(t)
	must(t, SetPropagation(s.target, Shared, false))
	must(t, systest.RemountBindReadOnly(s.target))
	want := inspect(t, s.target)
	if want.UniqueID == 0 || want.Shared == 0 || !want.ReadOnly || want.Nlink != 1 {
		t.Errorf("state %+v, want a unique number, shared, read-only, one link", want)
	}
	// Before 6.13 the kernel's calls do not give it.
	known := cmpopts.IgnoreFields(State{}, "Source")
	if sys.HasStatmountSource.Probe() == nil {
		known = cmp.Options{}
	}
	withSource(t, tableSource{}, func(t *testing.T) {
		got := inspect(t, s.target)
		if diff := cmp.Diff(want, got, known, cmpopts.IgnoreFields(ID{}, "UniqueID")); diff != "" {
			t.Error(diff)
		}
		if !got.Same(want.ID) {
			t.Errorf("%v not the same as %v", got.ID, want.ID)
		}
	})
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

// TestLocateAllSaysWhatInspectSays: but for the inode of the root.
func TestLocateAllSaysWhatInspectSays(t *testing.T) {
	s := newScene(t)
	other := filepath.Join(s.dir, "other")
	write(t, other)
	must(t, Bind(other, other))
	must(t, os.Remove(s.source))
	known := inspect(t, s.target)
	numbered, wrong := known.ID, known.ID
	numbered.UniqueID = 0
	wrong.UniqueID, wrong.MountInfoID = 0, 1<<30
	hidden := inspect(t, other)
	must(t, Bind(other, other))
	for name, test := range map[string]struct {
		want ID
		is   State
		err  error
	}{
		"known":             {known.ID, known, nil},
		"by mountinfo":      {numbered, known, nil},
		"by point":          {ID{Point: s.target}, known, nil},
		"number of another": {wrong, known, nil},
		"hidden":            {hidden.ID, hidden, nil},
		"visible":           {ID{Point: other}, inspect(t, other), nil},
		"not mounted":       {ID{Point: t.TempDir()}, State{}, ErrNotMounted},
		"nothing":           {ID{Point: filepath.Join(s.dir, "none")}, State{}, ErrNotMounted},
	} {
		t.Run(name, func(t *testing.T) {
			LocateAll(nil, []ID{{Point: "/"}, test.want}, func(i int, st State, err error) {
				want := test.is
				want.Nlink, want.Inode, want.Dir, want.Gone, want.Changed = 0, 0, false, false, time.Time{}
				if i == 1 && (!errors.Is(err, test.err) || !cmp.Equal(want, st, cmp.AllowUnexported(State{}))) {
					t.Errorf("%v: %s", err, cmp.Diff(want, st, cmp.AllowUnexported(State{})))
				}
			})
		})
	}
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
