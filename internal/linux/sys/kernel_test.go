// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sys_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

func TestMain(m *testing.M) {
	kerneltest.Main(m, kerneltest.Roles{
		"lock and hang": lockAndHang,
		"hold":          kerneltest.Hold,
		"scratch": func(_ []string, ready func(string)) error {
			s, err := sys.NewScratchSpace()
			if err != nil {
				return err
			}
			ready("")
			return s.Close()
		},
	})
}

// TestScratchSpaceFirst: a process that probes paths makes the namespace before
// it has opened anything, /proc included.
func TestScratchSpaceFirst(t *testing.T) { kerneltest.StartWith(t, nil, "scratch") }

var must = kerneltest.Must

// TestFeatures: each is there, or missing, and never unknown. A table in docs/support.md rests on it.
func TestFeatures(t *testing.T) {
	for _, f := range sys.Features() {
		t.Run(strings.ReplaceAll(f.Name, "/", "-"), func(t *testing.T) { kerneltest.Needs(t, f) })
	}
}

// TestMountActsOnlyOnThreadsOfTheirOwn: elsewhere they would move the working
// directory of the whole process.
func TestMountActsOnlyOnThreadsOfTheirOwn(t *testing.T) {
	fd, err := sys.Lookup(t.TempDir())
	must(t, err)
	defer fd.Close()
	if err := sys.DetachMount(fd); !errors.Is(err, sys.EINVAL) {
		t.Errorf("detach: %v, want EINVAL", err)
	}
	if err := sys.ExpireMount(fd, "x"); !errors.Is(err, sys.EINVAL) {
		t.Errorf("expire: %v, want EINVAL", err)
	}
}

func TestExpireMountFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	point := filepath.Join(dir, "point")
	must(t, os.Mkdir(point, 0o700))
	must(t, os.Symlink("point", filepath.Join(dir, "link")))
	must(t, sys.NewMount("tmpfs", point, "tmpfs", ""))
	defer systest.UnmountPath(point, true)
	fd, err := sys.Lookup(dir)
	must(t, err)
	defer fd.Close()
	err = sys.OnThread(func() error { return sys.ExpireMount(fd, "link") })
	if !errors.Is(err, sys.EINVAL) {
		t.Errorf("expire of a link: %v, want EINVAL", err)
	}
}

// TestAttachBeneath swaps the mount at a path without a gap.
func TestAttachBeneath(t *testing.T) {
	kerneltest.Needs(t, sys.HasMoveBeneath)
	dir := t.TempDir()
	must(t, sys.NewMount("tmpfs", dir, "tmpfs", ""))
	defer systest.UnmountPath(dir, true)
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(at("old"), []byte("old"), 0o600))
	must(t, os.WriteFile(at("new"), []byte("new"), 0o600))
	must(t, os.WriteFile(at("target"), nil, 0o600))
	must(t, sys.BindMount(at("old"), at("target")))
	must(t, os.Remove(at("old")))

	stale, err := sys.Lookup(at("target"))
	must(t, err)
	defer stale.Close()
	fresh, err := sys.Lookup(at("new"))
	must(t, err)
	defer fresh.Close()
	tree, err := sys.CloneTree(fresh)
	must(t, err)
	defer tree.Close()
	must(t, sys.MakeTreePrivate(tree, true))
	if err := sys.Attach(tree, stale, false); !errors.Is(err, sys.ENOENT) {
		t.Errorf("attach on an unlinked root: %v, want ENOENT", err)
	}
	must(t, sys.Attach(tree, stale, true))
	if text, err := os.ReadFile(at("target")); err != nil || string(text) != "old" {
		t.Errorf("before: %q, %v, want old", text, err)
	}
	must(t, sys.OnThread(func() error { return sys.DetachMount(stale) }))
	if text, err := os.ReadFile(at("target")); err != nil || string(text) != "new" {
		t.Errorf("after: %q, %v, want new", text, err)
	}
	if err := os.WriteFile(at("target"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write: %v, want EROFS", err)
	}
}

// TestNamespacesOneByOne walks in both directions and meets ours and another each
// time, whichever comes first. Those of others may come and go meanwhile.
func TestNamespacesOneByOne(t *testing.T) {
	kerneltest.Needs(t, sys.HasNamespaceWalk)
	other, err := sys.OpenNamespace(fmt.Sprintf("%d/ns/mnt", kerneltest.Start(t, "hold").PID))
	must(t, err)
	defer other.Close()
	fd, err := sys.OpenNamespace("self/ns/mnt")
	must(t, err)
	var live []uint64
	for _, ns := range []sys.NamespaceFD{fd, other} {
		info, err := ns.NamespaceInfo()
		must(t, err)
		live = append(live, info.ID)
	}
	_, last := walkNamespaces(t, fd, sys.NamespaceFD.NextNamespace)
	backward, first := walkNamespaces(t, last, sys.NamespaceFD.PrevNamespace)
	all, last := walkNamespaces(t, first, sys.NamespaceFD.NextNamespace)
	last.Close()
	for _, id := range live {
		if !backward[id] || !all[id] {
			t.Errorf("namespace %d: met on the way back %v, on the way from the first %v", id, backward[id], all[id])
		}
	}
	if live[0] == live[1] {
		t.Errorf("namespace %d is both", live[0])
	}
}

// walkNamespaces goes on from fd, which it closes, and gives the last one it met.
func walkNamespaces(t *testing.T, fd sys.NamespaceFD, step func(sys.NamespaceFD) (sys.NamespaceFD, sys.NamespaceInfo, error)) (map[uint64]bool, sys.NamespaceFD) {
	t.Helper()
	info, err := fd.NamespaceInfo()
	must(t, err)
	met := map[uint64]bool{info.ID: true}
	for {
		next, info, err := step(fd)
		if errors.Is(err, sys.ENOENT) {
			return met, fd
		}
		must(t, err)
		fd.Close()
		fd, met[info.ID] = next, true
	}
}

// TestListmountPages lists the same mounts whatever the size of a page.
func TestListmountPages(t *testing.T) {
	kerneltest.Needs(t, sys.HasStatmount)
	var whole, pages []uint64
	ids := make([]uint64, 4096)
	n, err := sys.Listmount(sys.MountRef{Mount: sys.RootOf}, 0, ids)
	must(t, err)
	whole = ids[:n]
	for page := make([]uint64, 3); ; {
		after := uint64(0)
		if len(pages) > 0 {
			after = pages[len(pages)-1]
		}
		n, err := sys.Listmount(sys.MountRef{Mount: sys.RootOf}, after, page)
		must(t, err)
		if pages = append(pages, page[:n]...); n < len(page) {
			break
		}
	}
	if len(whole) == 0 || len(whole) != len(pages) {
		t.Errorf("%d at once, %d in pages", len(whole), len(pages))
	}
}

// TestMountStatGrows asks about a mount whose strings need more than a page.
func TestMountStatGrows(t *testing.T) {
	kerneltest.Needs(t, sys.HasStatmount)
	dir := t.TempDir()
	must(t, sys.NewMount("tmpfs", dir, "tmpfs", ""))
	defer systest.UnmountPath(dir, true)
	deep := dir
	t.Chdir(dir)
	name := longName
	for range 19 { // 19 names of 200 bytes, close to the longest path there is
		must(t, os.Mkdir(name, 0o700))
		must(t, os.Chdir(name))
		deep = filepath.Join(deep, name)
	}
	must(t, sys.NewMount("tmpfs", ".", "tmpfs", ""))
	fd, err := sys.Lookup(deep)
	must(t, err)
	defer fd.Close()
	st, err := fd.Stat(sys.StatUniqueID)
	must(t, err)
	var m sys.MountStat
	must(t, m.Load(sys.MountRef{Mount: st.MountID}, sys.StatmountPoint|sys.StatmountRoot|sys.StatmountType))
	if string(m.Point()) != deep || string(m.Root()) != "/" || m.FSType() != "tmpfs" {
		t.Errorf("point of %d bytes, root %q, type %q", len(m.Point()), m.Root(), m.FSType())
	}
	if m.Source() != nil {
		t.Errorf("source %q without having asked", m.Source())
	}
}

var longName = strings.Repeat("x", 200)

// TestMapsFileAgreesWithTheText: the question finds just the file systems that are in the text of this process' memory.
func TestMapsFileAgreesWithTheText(t *testing.T) {
	const name = "self/maps"
	type device struct{ major, minor uint32 }
	text, err := sys.ReadProc(name, nil)
	must(t, err)
	inText, asked := map[device]bool{}, map[device]bool{}
	for line := range strings.Lines(string(text)) {
		var d device
		if _, err := fmt.Sscanf(strings.Fields(line)[3], "%x:%x", &d.major, &d.minor); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if d != (device{}) {
			inText[d] = true
		}
	}
	found, err := sys.MapsFile(name, func(major, minor uint32) bool {
		asked[device{major, minor}] = true
		return false
	})
	if errors.Is(err, unix.ENOTTY) {
		t.Skip("kernel lacks the question for one area of memory (6.11)")
	}
	if err != nil || found || len(inText) == 0 || !maps.Equal(asked, inText) {
		t.Errorf("found %t, %v; asked about %v, in the text are %v", found, err, asked, inText)
	}
	for d := range inText {
		found, err := sys.MapsFile(name, func(major, minor uint32) bool { return d == device{major, minor} })
		if err != nil || !found {
			t.Errorf("file system %v: %t, %v", d, found, err)
		}
	}
}
