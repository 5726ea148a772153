// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// testLister is a Lister whose way to keep a list the test chooses.
type testLister struct {
	*Lister
	// procfs withholds the number of the namespace, which the kernel's calls need.
	procfs bool
	// blind takes away the kernel's word that nothing has happened.
	blind bool
}

func newTestLister(procfs, blind bool) *testLister {
	return &testLister{Lister: &Lister{}, procfs: procfs, blind: blind}
}

func (l *testLister) List(ns Namespace, below string) (mounts []Mount, changed bool, err error) {
	if l.procfs {
		ns.ID = 0
	}
	if l.blind {
		l.changePoll.closeTable()
		l.changePoll.ns = ns // asked for, and not to be polled
	}
	return l.Lister.List(ns, below)
}

// onEveryLister runs a test on both ways to keep a list, with and without the
// kernel's word that nothing has happened.
func onEveryLister(t *testing.T, test func(t *testing.T, l *testLister)) {
	t.Helper()
	for name, blind := range map[string]bool{"": false, ", blind": true} {
		run := func(t *testing.T, l *testLister) {
			t.Cleanup(l.Close)
			test(t, l)
		}
		t.Run("procfs"+name, func(t *testing.T) { run(t, newTestLister(true, blind)) })
		t.Run("kernel"+name, func(t *testing.T) {
			kerneltest.Needs(t, sys.HasNamespaceID)
			ns, err := Self()
			must(t, err)
			if _, ok := chooseListing(ns).(*kernelList); !ok {
				t.Fatal("the kernel's calls were not chosen")
			}
			run(t, newTestLister(false, blind))
		})
	}
}

// listedDir is a directory with its own file system, and a list of the mounts below it.
type listedDir struct {
	*testLister
	ns  Namespace
	dir string
}

func newListed(t *testing.T, l *testLister) listedDir {
	t.Helper()
	ns, err := Of(os.Getpid())
	must(t, err)
	dir := t.TempDir()
	must(t, sys.NewMount("listed", dir, "tmpfs", ""))
	t.Cleanup(func() { systest.UnmountPath(dir, true) })
	return listedDir{testLister: l, ns: ns, dir: dir}
}

func (l listedDir) pathOf(name string) string { return filepath.Join(l.dir, name) }

// bindAt makes a source of its own visible at target, both files of the directory.
func (l listedDir) bindAt(t *testing.T, target string) {
	t.Helper()
	for _, name := range []string{l.pathOf(target), l.pathOf(target + ".source")} {
		must(t, os.MkdirAll(filepath.Dir(name), 0o700))
		must(t, touch(name))
	}
	must(t, sys.BindMount(l.pathOf(target+".source"), l.pathOf(target)))
}

// expectList lists, compares with mountinfo, and returns the roots by point.
func (l listedDir) expectList(t *testing.T, below string, wantChanged bool) []Mount {
	t.Helper()
	got, changed, err := l.List(l.ns, below)
	must(t, err)
	if changed != wantChanged {
		t.Errorf("changed: %v, want %v", changed, wantChanged)
	}
	table, err := Table(0)
	must(t, err)
	var want []Mount
	for _, m := range table.Under(below) {
		if m.Point != below {
			want = append(want, Mount{Mount: m, Namespace: l.ns})
		}
	}
	// Before 6.8 the kernel's order differs from the order of the numbers.
	byID := cmpopts.SortSlices(func(a, b Mount) bool { return a.ID < b.ID })
	rare := cmpopts.IgnoreFields(mountinfo.Mount{}, "Options", "SuperOptions", "PropagateFrom", "Unbindable")
	if sys.HasStatmountSource.Probe() != nil {
		rare = cmpopts.IgnoreFields(mountinfo.Mount{}, "Options", "SuperOptions", "PropagateFrom", "Unbindable", "Source")
	}
	same := cmp.Comparer(Namespace.Same)
	if diff := cmp.Diff(want, got, byID, rare, same, cmpopts.IgnoreFields(Mount{}, "Unique"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("below %q: %s", below, diff)
	}
	return got
}

var oddNames = []string{
	"plain", "sp ace", "tab\ttab", "new\nline", `back\slash`, `back\040slash`, "#hash", "ünï-文", "\xff\xfe",
	"x (deleted)", "deleted", `\`, "a:b,c", "-",
}

func TestListerShowsEveryName(t *testing.T) {
	onEveryLister(t, func(t *testing.T, lister *testLister) {
		for _, parent := range oddNames {
			l := newListed(t, lister)
			for _, name := range oddNames {
				l.bindAt(t, filepath.Join(parent, name))
			}
			points := map[string]string{}
			for _, m := range l.expectList(t, l.pathOf(parent), true) {
				points[m.Point] = m.Root
			}
			for _, name := range oddNames {
				want := "/" + filepath.Join(parent, name) + ".source"
				if got := points[l.pathOf(filepath.Join(parent, name))]; got != want {
					t.Errorf("root of %q below %q is %q, want %q", name, parent, got, want)
				}
			}
			l.expectList(t, l.pathOf(parent), false)
		}
	})
}

// TestListerMatchesByComponent: neither paths that only begin alike, nor the path itself.
func TestListerMatchesByComponent(t *testing.T) {
	onEveryLister(t, func(t *testing.T, lister *testLister) {
		l := newListed(t, lister)
		for _, name := range []string{"b/in", "bc/out", "b.d", "b c/out", "c"} {
			l.bindAt(t, name)
		}
		must(t, sys.BindMount(l.pathOf("b"), l.pathOf("b"))) // hides b/in, which stays
		got := l.expectList(t, l.pathOf("b"), true)
		if len(got) != 1 || got[0].Point != l.pathOf("b/in") {
			t.Errorf("below b: %v", got)
		}
		if got := l.expectList(t, l.pathOf("none"), true); len(got) != 0 {
			t.Errorf("below what is not there: %v", got)
		}
		l.expectList(t, l.pathOf("none"), false)
		l.expectList(t, l.dir, true)
		whole := l.expectList(t, "/", true)
		if slices.ContainsFunc(whole, func(m Mount) bool { return m.Point == "/" }) {
			t.Error("the root is below itself")
		}
	})
}

func TestListerFollowsWhatHappens(t *testing.T) {
	onEveryLister(t, func(t *testing.T, lister *testLister) {
		l := newListed(t, lister)
		if got := l.expectList(t, l.dir, true); len(got) != 0 {
			t.Errorf("at first: %v", got)
		}
		for _, name := range []string{"one", "two", "three"} {
			l.bindAt(t, name)
			l.expectList(t, l.dir, true)
		}
		must(t, systest.UnmountPath(l.pathOf("two"), false))
		l.expectList(t, l.dir, true)
		// One goes, one comes: as many as before, perhaps with the same number.
		must(t, systest.UnmountPath(l.pathOf("one"), false))
		must(t, sys.BindMount(l.pathOf("one.source"), l.pathOf("one")))
		l.expectList(t, l.dir, true)
		// An event elsewhere is no change.
		outside := newListed(t, lister)
		outside.bindAt(t, "elsewhere")
		l.expectList(t, l.dir, false)
		must(t, systest.UnmountPath(outside.pathOf("elsewhere"), false))
		l.expectList(t, l.dir, false)
	})
}

// TestListerShowsStacks: mounts that hide others and hidden mounts, the topmost last.
func TestListerShowsStacks(t *testing.T) {
	onEveryLister(t, func(t *testing.T, lister *testLister) {
		l := newListed(t, lister)
		l.bindAt(t, "point")
		must(t, touch(l.pathOf("second")))
		must(t, sys.BindMount(l.pathOf("second"), l.pathOf("point")))
		got := l.expectList(t, l.dir, true)
		if len(got) != 2 || got[0].Root != "/point.source" || got[1].Root != "/second" || got[1].Parent != got[0].ID {
			t.Errorf("stack: %v", got)
		}
		must(t, systest.UnmountPath(l.pathOf("point"), false))
		if got := l.expectList(t, l.dir, true); len(got) != 1 || got[0].Root != "/point.source" {
			t.Errorf("top unmounted: %v", got)
		}
	})
}

// TestListerFollowsMoves: a moved mount keeps its number, so that the kernel's
// way needs some calls to notice; where the points are read at every call, none.
func TestListerFollowsMoves(t *testing.T) {
	moves := map[string]struct{ from, to string }{
		"within": {"in/from", "in/to"},
		"out of": {"in/from", "out"},
		"into":   {"from", "in/to"},
	}
	onEveryLister(t, func(t *testing.T, lister *testLister) {
		for name, move := range moves {
			t.Run(name, func(t *testing.T) {
				l := newListed(t, lister)
				l.bindAt(t, "in/other")
				l.bindAt(t, move.from)
				must(t, touch(l.pathOf(move.to)))
				l.expectList(t, l.pathOf("in"), true)
				must(t, systest.MoveMountTo(l.pathOf(move.from), l.pathOf(move.to)))
				awaitChange(t, l, l.pathOf("in"), recheck, 1)
				l.expectList(t, l.pathOf("in"), false)
			})
		}
		t.Run("by renaming a directory above", func(t *testing.T) {
			l := newListed(t, lister)
			l.bindAt(t, "in/pod/mount")
			l.expectList(t, l.pathOf("in"), true)
			must(t, os.Rename(l.pathOf("in/pod"), l.pathOf("in/gone")))
			awaitChange(t, l, l.pathOf("in"), recheckQuiet, reread+1)
			if got := l.expectList(t, l.pathOf("in"), false); len(got) != 1 || got[0].Point != l.pathOf("in/gone/mount") {
				t.Errorf("renamed: %v", got)
			}
		})
	})
}

// awaitChange lists until the change is seen: with the kernel's calls until every
// mount of the namespace has had its turn, so many at each call, and without them
// so many times.
func awaitChange(t *testing.T, l listedDir, below string, each, times int) {
	t.Helper()
	if _, ok := l.listing.(*kernelList); ok {
		table, err := Table(0)
		must(t, err)
		times = len(table.Mounts())/each + 2
	}
	for range times {
		_, changed, err := l.List(l.ns, below)
		must(t, err)
		if changed {
			return
		}
	}
	t.Errorf("the move was not noticed in %d lists", times)
}

// TestListerAndUnlinkedSources: an unlinked source is a change only where the root is
// read at every call; it never is one of the mounts.
func TestListerAndUnlinkedSources(t *testing.T) {
	onEveryLister(t, func(t *testing.T, lister *testLister) {
		l := newListed(t, lister)
		l.bindAt(t, "point")
		l.expectList(t, l.dir, true)
		must(t, os.Remove(l.pathOf("point.source")))
		got, _, err := l.List(l.ns, l.dir)
		must(t, err)
		if len(got) != 1 || got[0].Point != l.pathOf("point") {
			t.Errorf("unlinked: %v", got)
		}
		path, _ := mountinfo.Deleted(got[0].Root)
		if path != "/point.source" {
			t.Errorf("root %q", got[0].Root)
		}
	})
}

// TestListerAndOtherNamespaces goes from one to another and back, and outlives
// both.
func TestListerAndOtherNamespaces(t *testing.T) {
	onEveryLister(t, func(t *testing.T, l *testLister) {
		dir := t.TempDir()
		for _, name := range []string{"first", "second"} {
			must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		}
		list := func(ns Namespace, want string) {
			t.Helper()
			got, changed, err := l.List(ns, dir)
			if err != nil || !changed || len(got) != 1 || got[0].Point != filepath.Join(dir, want) || !got[0].Namespace.Same(ns) {
				t.Errorf("%v, %v, %v; want one at %q", got, changed, err, want)
			}
		}
		first := kerneltest.Start(t, "hold", filepath.Join(dir, "first"))
		second := kerneltest.Start(t, "hold", filepath.Join(dir, "second"))
		one, err := Of(first.PID)
		must(t, err)
		two, err := Of(second.PID)
		must(t, err)
		list(one, "first")
		list(two, "second")
		list(one, "first")
		first.End()
		awaitGone(t, l, one, dir)
		list(two, "second")
		two.PID = 0 // a namespace without a known process
		if two.ID != 0 && !l.procfs {
			list2, _, err := l.List(two, dir)
			if err != nil || len(list2) != 1 {
				t.Errorf("without a process: %v, %v", list2, err)
			}
		}
		second.End()
		awaitGone(t, l, two, dir)
	})
}

// awaitGone lists until the kernel has taken the namespace apart.
func awaitGone(t *testing.T, l *testLister, ns Namespace, dir string) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, _, err = l.List(ns, dir); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrGone) {
		t.Errorf("a namespace that is gone: %v, want ErrGone", err)
	}
	t.Log(err)
}

func TestListerRefuses(t *testing.T) {
	onEveryLister(t, func(t *testing.T, l *testLister) {
		ns, err := Of(os.Getpid())
		must(t, err)
		for _, below := range []string{"", "relative", "/a/", "/a/../b", "/a//b", "."} {
			if _, _, err := l.List(ns, below); !errors.Is(err, sys.EINVAL) {
				t.Errorf("below %q: %v, want EINVAL", below, err)
			}
		}
	})
	ns, err := Of(os.Getpid())
	must(t, err)
	ns.Inode++
	if _, _, err := newTestLister(true, false).List(ns, "/"); !errors.Is(err, ErrChanged) {
		t.Errorf("process in another namespace: %v, want ErrChanged", err)
	}
}

// makeMany binds n files below a directory of its own.
func makeMany(tb testing.TB, n int) string {
	tb.Helper()
	dir := tb.TempDir()
	must(tb, sys.NewMount("many", dir, "tmpfs", ""))
	tb.Cleanup(func() { systest.UnmountPath(dir, true) })
	source := filepath.Join(dir, "source")
	must(tb, touch(source))
	for i := range n {
		pod := filepath.Join(dir, "pods", fmt.Sprintf("29da79e5-386c-4e0d-82c1-%012x", i), "volume-subpaths/conf/app")
		must(tb, os.MkdirAll(pod, 0o700))
		target := filepath.Join(pod, strconv.Itoa(i%3))
		must(tb, touch(target))
		must(tb, sys.BindMount(source, target))
	}
	return filepath.Join(dir, "pods")
}

// TestListerAllocatesNothingWhereNothingChanges: without the kernel's word that nothing has happened, only the kernel's calls
// allow that.
func TestListerAllocatesNothingWhereNothingChanges(t *testing.T) {
	ns, err := Self()
	must(t, err)
	ns.PID = os.Getpid()
	dir := makeMany(t, 100)
	for name, l := range map[string]*testLister{
		"procfs": newTestLister(true, false), "kernel": newTestLister(false, false), "kernel, blind": newTestLister(false, true),
	} {
		t.Run(name, func(t *testing.T) {
			if !l.procfs {
				kerneltest.Needs(t, sys.HasNamespaceID)
			}
			t.Cleanup(l.Close)
			list := func() {
				if got, _, err := l.List(ns, dir); err != nil || len(got) != 100 {
					t.Fatal(len(got), err)
				}
			}
			list()
			if n := testing.AllocsPerRun(100, list); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// BenchmarkLister lists 2,500 mounts on both ways, with and without the kernel's
// word that nothing has happened.
func BenchmarkLister(b *testing.B) {
	for name, blind := range map[string]bool{"": false, ", blind": true} {
		b.Run("procfs"+name, func(b *testing.B) {
			benchLister(b, func() *testLister { return newTestLister(true, blind) })
		})
		b.Run("kernel"+name, func(b *testing.B) {
			kerneltest.Needs(b, sys.HasNamespaceID)
			benchLister(b, func() *testLister { return newTestLister(false, blind) })
		})
	}
}

func benchLister(b *testing.B, newLister func() *testLister) {
	const mounts = 2500
	ns, err := Of(os.Getpid())
	must(b, err)
	dir, l := makeMany(b, mounts), newLister()
	b.Cleanup(func() { l.Close() })
	look := func(want int, wantChanged bool) {
		got, changed, err := l.List(ns, dir)
		if err != nil || len(got) != want || changed != wantChanged {
			b.Fatal(len(got), changed, err)
		}
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			l.Close()
			l = newLister()
			look(mounts, true)
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		l.Close()
		l = newLister()
		look(mounts, true)
		b.ReportAllocs()
		for b.Loop() {
			look(mounts, false)
		}
	})
	b.Run("one comes or goes", func(b *testing.B) {
		target := filepath.Join(dir, "target")
		must(b, touch(target))
		l.Close()
		l = newLister()
		look(mounts, true)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if i%2 == 0 {
				must(b, sys.BindMount(target, target))
			} else {
				must(b, systest.UnmountPath(target, false))
			}
			look(mounts+(i+1)%2, true)
		}
		_ = systest.UnmountPath(target, true)
	})
}
