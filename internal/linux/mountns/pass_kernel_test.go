// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// passScene is a mount at a point of two namespaces.
type passScene struct {
	point           string
	inode, ownInode uint64
}

// foundPlace is that mount in one of them, or its file system if there is but the inode.
type foundPlace struct {
	Inode       uint64
	Point, Root string
	ID, Parent  int
	FSType      string
}

// find looks for the mount twice, and then for its file system.
func (s passScene) find(t *testing.T, p *Pass) (all []foundPlace) {
	t.Helper()
	either := func(inode uint64) bool { return inode == s.inode || inode == s.ownInode }
	for range 2 {
		_, err := p.EachMount(func(b *MountBrief) bool { return b.MayHang }, func(m *Mount) {
			if m.Point == s.point && either(m.Namespace.Inode) {
				all = append(all, foundPlace{m.Namespace.Inode, m.Point, m.Root, m.ID, m.Parent, m.FSType})
			}
		})
		must(t, err)
	}
	systems, survey, err := p.FileSystems()
	must(t, err)
	if survey.Namespaces < 2 || survey.Mounts < 2 {
		t.Errorf("survey %+v, want two namespaces at least", survey)
	}
	for _, fs := range systems {
		for _, ns := range fs.Namespaces {
			if fs.Mount.FSType == "fuse" && either(ns.Inode) && fs.Mount.Point == s.point {
				all = append(all, foundPlace{Inode: ns.Inode})
			}
		}
	}
	return all
}

// TestPassReadsEachTableOnce has several searches share a look. They find the mounts that each would find by itself.
func TestPassReadsEachTableOnce(t *testing.T) {
	dir := t.TempDir()
	kerneltest.FUSE(t, dir)
	inode, ok := inodeOf(kerneltest.Start(t, "hold").Answer)
	if !ok {
		t.Fatal("the namespace was not told")
	}
	host, err := Self()
	must(t, err)
	table, err := Table(0)
	must(t, err)
	f, want := passScene{dir, inode, host.Inode}, map[foundPlace]int{}
	for _, p := range f.find(t, nil) {
		want[p]++
	}
	for name, begin := range map[string]func() *Pass{
		"listed": func() *Pass { return NewPass(host, nil) },
		"known":  func() *Pass { return NewPass(host, table) },
		"procfs": func() *Pass {
			return &Pass{scanner{procScan{standardLimits, &keptTables{}}, standardLimits}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, of := range []uint64{inode, host.Inode} {
				reads, stop := CountReads(Namespace{Inode: of})
				got := map[foundPlace]int{}
				for _, p := range f.find(t, begin()) {
					got[p]++
				}
				stop()
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("found (-alone +shared):\n%s", diff)
				}
				if n := reads(); n > 1 || of == inode && n == 0 {
					t.Errorf("namespace %d was read %d times, want once", of, n)
				}
			}
		})
	}
}

// TestFileSystemsOutside: a file system that our namespace has mounted, too, is none; the one that only the other has is one.
func TestFileSystemsOutside(t *testing.T) {
	shared, dir := t.TempDir(), t.TempDir()
	must(t, sys.NewMount("shared", shared, "tmpfs", ""))
	t.Cleanup(func() { systest.UnmountPath(shared, true) })
	inode := holdInRole("hold")(t, dir)
	host, err := Self()
	must(t, err)
	table, err := Table(0)
	must(t, err)
	for name, p := range map[string]*Pass{
		"alone": nil, "listed": NewPass(host, nil), "known": NewPass(host, table), "procfs": {scanner{procScan{standardLimits, &keptTables{}}, standardLimits}},
	} {
		t.Run(name, func(t *testing.T) {
			points := func(host Namespace, wantSeen bool) map[string]bool {
				t.Helper()
				all, seen, survey, err := p.FileSystemsOutside(host)
				must(t, err)
				if seen != wantSeen || survey.Namespaces < 2 {
					t.Errorf("host %v is seen: %v, survey %+v", host, seen, survey)
				}
				found := map[string]bool{}
				for _, fs := range all {
					if fs.Mount.Point == shared || fs.Mount.Point == dir && fs.Mount.FSType == "tmpfs" {
						found[fs.Mount.Point] = true
					}
				}
				return found
			}
			for _, c := range []struct {
				host Namespace
				seen bool
				want map[string]bool
			}{
				{host, true, map[string]bool{dir: true}},
				{Namespace{Inode: inode}, true, map[string]bool{}},
				{Namespace{Inode: 1}, false, map[string]bool{dir: true, shared: true}},
			} {
				if diff := cmp.Diff(c.want, points(c.host, c.seen)); diff != "" {
					t.Errorf("outside of %v (-want +got):\n%s", c.host, diff)
				}
			}
		})
	}
}

// TestProcPassForgetsWhatIsLong has a shared look read tables again that it has no room for.
func TestProcPassForgetsWhatIsLong(t *testing.T) {
	kept := &keptTables{}
	count := 0
	read := func(look tableReader) (Survey, error) {
		count++
		return Survey{Namespaces: 2}, errors.Join(look(Namespace{Inode: 1}, make([]byte, maxKeptText)), look(Namespace{Inode: 2}, []byte("x")))
	}
	for range 3 {
		seen := 0
		survey, err := kept.readAll(read, func(Namespace, []byte) error { seen++; return nil })
		if must(t, err); seen != 2 || survey.Namespaces != 2 {
			t.Fatalf("%d tables, survey %+v, want 2", seen, survey)
		}
	}
	if count != 3 || len(kept.tables) > 0 {
		t.Errorf("read %d times, kept %d tables, want 3 and none", count, len(kept.tables))
	}
}

// TestLookupOfWhatIsNotCachedReadsNoTable has names looked up that the kernel's cache does not know.
func TestLookupOfWhatIsNotCachedReadsNoTable(t *testing.T) {
	kerneltest.Needs(t, sys.HasStatmount)
	dir := t.TempDir()
	kerneltest.FUSE(t, dir)
	self, err := Self()
	must(t, err)
	reads, stop := CountReads(self)
	defer stop()
	for name, want := range map[string]error{
		filepath.Join(filepath.Dir(dir), "none"): sys.ENOENT, filepath.Join(filepath.Dir(dir), "none/below"): sys.ENOENT, dir: nil,
	} {
		fd, err := Lookup(0, name)
		fd.Close()
		if !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
	}
	if n := reads(); n != 0 {
		t.Errorf("the table was read %d times, want none", n)
	}
	if fd, err := Lookup(0, filepath.Join(dir, "hang")); !errors.Is(err, ErrMayBlock) {
		fd.Close()
		t.Errorf("on a file system that may hang: %v, want %v", err, ErrMayBlock)
	}
}
