// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// onEveryBackend runs a test on both ways through the machine.
func onEveryBackend(t *testing.T, test func(t *testing.T, s scanner)) {
	t.Helper()
	t.Run("procfs", func(t *testing.T) {
		test(t, scanner{procScan{limits: standardLimits}, standardLimits})
	})
	t.Run("kernel", func(t *testing.T) {
		kerneltest.Needs(t, sys.HasNamespaceWalk)
		kerneltest.Needs(t, sys.HasNamespaceID)
		s := newScanner(standardLimits)
		if _, ok := s.backend.(kernelScan); !ok {
			t.Fatal("the kernel's calls were not chosen")
		}
		test(t, s)
	})
}

// namespaceHolder is how a mount namespace can be kept alive.
type namespaceHolder struct {
	kind Kind
	// hide brings about a namespace in which dir is a mount, and gives its inode.
	hide func(t *testing.T, dir string) uint64
}

var namespaceHolders = map[string]namespaceHolder{
	"process":                  {kind: Process, hide: holdInRole("hold")},
	"thread":                   {kind: Thread, hide: holdInRole("thread")},
	"process in a chroot":      {kind: Process, hide: holdInRole("chroot")},
	"descriptor":               {kind: Descriptor, hide: holdInRole("descriptor")},
	"file that it is bound to": {kind: NamedMount, hide: bindNamespace},
}

// bindNamespace binds a namespace to a file and has its process end.
func bindNamespace(t *testing.T, dir string) uint64 {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ns")
	must(t, touch(file))
	holder := kerneltest.BindNamespace(t, file, func() *kerneltest.Actor { return kerneltest.Start(t, "hold", dir) })
	return parseInode(t, holder.Answer)
}

// holdInRole has a process play a role, which answers with the inode.
func holdInRole(role string) func(*testing.T, string) uint64 {
	return func(t *testing.T, dir string) uint64 {
		t.Helper()
		return parseInode(t, kerneltest.Start(t, role, dir).Answer)
	}
}

func parseInode(t *testing.T, answer string) uint64 {
	t.Helper()
	inode, ok := inodeOf(answer)
	if !ok {
		t.Fatalf("role answered %q", answer)
	}
	return inode
}

// TestScannerFindsEveryNamespace hides a namespace in every way, and finds it, the mount in it, and its holder.
func TestScannerFindsEveryNamespace(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, s scanner) {
		for name, refuge := range namespaceHolders {
			t.Run(name, func(t *testing.T) {
				dir := t.TempDir()
				inode := refuge.hide(t, dir)
				ns := findNamespace(t, s, inode)
				checkHolders(t, s, ns, refuge.kind)
				checkDevice(t, s, ns, dir)
				must(t, ns.Do(func() error {
					inside, err := Self()
					if err == nil && inside.Inode != inode {
						t.Errorf("inside is %v, want %d", inside, inode)
					}
					return err
				}))
			})
		}
	})
}

func findNamespace(t *testing.T, s scanner, inode uint64) Namespace {
	t.Helper()
	all, survey, err := s.backend.namespaces()
	must(t, err)
	if survey.Namespaces != len(all) || survey.Mounts < len(all) {
		t.Errorf("survey %+v of %d namespaces", survey, len(all))
	}
	i := slices.IndexFunc(all, func(ns Namespace) bool { return ns.Inode == inode })
	if i < 0 {
		t.Fatalf("namespace %d is not among %d", inode, len(all))
	}
	return all[i]
}

func checkHolders(t *testing.T, s scanner, ns Namespace, kind Kind) {
	t.Helper()
	holders, _, err := s.holders([]Namespace{ns})
	must(t, err)
	kinds := map[Kind]bool{}
	for _, h := range holders[ns.Inode] {
		kinds[h.Kind] = true
	}
	if diff := cmp.Diff(map[Kind]bool{kind: true}, kinds); diff != "" {
		t.Errorf("holders %+v: %s", holders, diff)
	}
}

// checkDevice finds the file system at dir, which is mounted nowhere else.
func checkDevice(t *testing.T, s scanner, ns Namespace, dir string) {
	t.Helper()
	var major, minor uint32
	must(t, ns.Do(func() error {
		fd, err := sys.Lookup(dir)
		if err != nil {
			return err
		}
		defer fd.Close()
		st, err := fd.Stat(sys.StatIno)
		major, minor = st.Major, st.Minor
		return err
	}))
	found, _, err := s.matchingMounts(func(b *MountBrief) bool { return b.Major == major && b.Minor == minor })
	must(t, err)
	want := "held"
	if len(found) > 0 && found[0].Source == "" && errors.Is(sys.HasStatmountSource.Probe(), errors.ErrUnsupported) {
		want = "" // the kernel does not say
	}
	if len(found) != 1 || found[0].Point != dir || found[0].Source != want || found[0].FSType != "tmpfs" || !found[0].Namespace.Same(ns) {
		t.Errorf("on the device: %+v, want %s in %v", found, dir, ns)
	}
	all, _, err := s.fileSystems(func(*MountBrief) bool { return true })
	must(t, err)
	i := slices.IndexFunc(all, func(fs FileSystem) bool { return fs.Mount.Major == major && fs.Mount.Minor == minor })
	if i < 0 || all[i].Mount.Point != dir || len(all[i].Namespaces) != 1 || !all[i].Namespaces[0].Same(ns) {
		t.Errorf("%s in %v is not among %d file systems as it should", dir, ns, len(all))
	}
}

// TestFileSystemsInSeveralNamespaces has each file system once, with every
// namespace that it is mounted in.
func TestFileSystemsInSeveralNamespaces(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, s scanner) {
		dir := t.TempDir()
		must(t, sys.NewMount("shared", dir, "tmpfs", ""))
		t.Cleanup(func() { systest.UnmountPath(dir, true) })
		self, err := Self()
		must(t, err)
		want := map[uint64]bool{self.Inode: true}
		for range 2 {
			want[parseInode(t, kerneltest.Start(t, "hold").Answer)] = true
		}
		all, _, err := s.fileSystems(func(*MountBrief) bool { return true })
		must(t, err)
		found := map[uint64]bool{}
		devices := map[uint64]int{}
		for _, fs := range all {
			devices[deviceNumber(fs.Mount.Major, fs.Mount.Minor)]++
			for _, ns := range fs.Namespaces {
				if fs.Mount.Point == dir {
					found[ns.Inode] = true
				}
			}
		}
		if diff := cmp.Diff(want, found); diff != "" || len(devices) != len(all) {
			t.Errorf("%d devices of %d: %s", len(devices), len(all), diff)
		}
	})
}

// TestOverlays are those among all file systems, and no others.
func TestOverlays(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, s scanner) {
		dir := t.TempDir()
		for _, name := range []string{"a", "b", "both"} {
			must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		}
		at := filepath.Join(dir, "both")
		must(t, sys.NewMount("overlay", at, "overlay", "lowerdir="+filepath.Join(dir, "a")+":"+filepath.Join(dir, "b")))
		t.Cleanup(func() { systest.UnmountPath(at, true) })
		_, own := findIn(t, s, at, func(*MountBrief) bool { return true })
		overlays, found := findIn(t, s, at, func(b *MountBrief) bool { return b.Overlay })
		if !own || !found || slices.ContainsFunc(overlays, func(fs FileSystem) bool { return fs.Mount.FSType != "overlay" }) {
			t.Errorf("%s is among all file systems: %v, among overlays: %v, and those are %+v", at, own, found, overlays)
		}
	})
}

// findIn lists the wanted file systems, and reports whether the one at a point is among them.
func findIn(t *testing.T, s scanner, point string, wanted func(*MountBrief) bool) (all []FileSystem, found bool) {
	t.Helper()
	all, _, err := s.fileSystems(wanted)
	must(t, err)
	return all, slices.ContainsFunc(all, func(fs FileSystem) bool { return fs.Mount.Point == point })
}

// TestScannerConformance looks for the mark on every kind of source, in the
// namespace where it was bound and in a copy of that, before and after it happened.
func TestScannerConformance(t *testing.T) {
	kerneltest.EachSource(t, func(t *testing.T, source *kerneltest.Source) {
		self, err := Self()
		must(t, err)
		copied := parseInode(t, kerneltest.Start(t, "hold").Answer)
		expect := func(t *testing.T, s scanner, what string, want map[string]string) {
			t.Helper()
			for _, inode := range []uint64{self.Inode, copied} {
				if diff := cmp.Diff(want, deletedIn(t, s, inode, source.Point)); diff != "" {
					t.Errorf("%s, namespace %d: %s", what, inode, diff)
				}
			}
		}
		onEveryBackend(t, func(t *testing.T, s scanner) { expect(t, s, "before", map[string]string{}) })
		source.Happen(t)
		want := map[string]string{}
		if source.Deleted {
			want["point"] = source.Root
		}
		onEveryBackend(t, func(t *testing.T, s scanner) { expect(t, s, "after", want) })
	})
}

// deletedMounts returns the mounts, in every namespace, whose root carries the kernel's mark.
func deletedMounts(s scanner) (found []Mount, survey Survey, err error) {
	survey, err = s.backend.scan(func(*MountBrief) bool { return true }, func(m *Mount) {
		if m.Deleted() {
			found = append(found, *m)
		}
	})
	return found, survey, err
}

// deletedIn returns the roots of the marked mounts at or below dir in one
// namespace by the last part of their points. The machine may have others.
func deletedIn(t *testing.T, s scanner, inode uint64, dir string) map[string]string {
	t.Helper()
	found, _, err := deletedMounts(s)
	must(t, err)
	roots := map[string]string{}
	for _, m := range found {
		if m.Namespace.Inode == inode && mountinfo.Within(dir, m.Point) {
			roots[filepath.Base(m.Point)] = m.Root
		}
	}
	return roots
}

func touch(name string) error { return os.WriteFile(name, nil, 0o600) }

// TestScannerShowsTheKernelsMark has sources removed, replaced and moved.
func TestScannerShowsTheKernelsMark(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, s scanner) {
		dir := t.TempDir()
		must(t, sys.NewMount("changing", dir, "tmpfs", ""))
		t.Cleanup(func() { systest.UnmountPath(dir, true) })
		at := func(name string) string { return filepath.Join(dir, name) }
		bind := func(source, target string) {
			t.Helper()
			must(t, touch(at(target)))
			must(t, sys.BindMount(at(source), at(target)))
		}
		for _, name := range []string{"one", "two", "three"} {
			must(t, touch(at(name)))
		}
		bind("one", "first")
		bind("one", "second")
		bind("two", "moves")
		bind("three", "goes")
		copied := parseInode(t, kerneltest.Start(t, "hold").Answer)
		self, err := Self()
		must(t, err)
		expect := func(what string, want map[string]string) {
			t.Helper()
			for _, inode := range []uint64{self.Inode, copied} {
				if diff := cmp.Diff(want, deletedIn(t, s, inode, dir)); diff != "" {
					t.Errorf("%s, namespace %d: %s", what, inode, diff)
				}
			}
		}
		expect("at first", map[string]string{})
		must(t, os.Remove(at("one")))
		expect("one removed", map[string]string{"first": "/one//deleted", "second": "/one//deleted"})
		must(t, touch(at("one")))
		bind("one", "third")
		expect("made again and bound", map[string]string{"first": "/one//deleted", "second": "/one//deleted"})
		must(t, os.Rename(at("two"), at("two.bak")))
		must(t, touch(at("two")))
		expect("two moved", map[string]string{"first": "/one//deleted", "second": "/one//deleted"})
		must(t, os.Remove(at("two.bak")))
		must(t, os.Remove(at("three")))
		expect("moved one removed", map[string]string{
			"first": "/one//deleted", "second": "/one//deleted",
			"moves": "/two.bak//deleted", "goes": "/three//deleted",
		})
	})
}

// TestScannerDoesNotWaitForFUSE: the scan reads the mounts of a dead server like all others.
func TestScannerDoesNotWaitForFUSE(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, s scanner) {
		dir, target := t.TempDir(), t.TempDir()
		server := kerneltest.FUSE(t, dir)
		must(t, sys.BindMount(filepath.Join(dir, "moving"), target))
		t.Cleanup(func() { systest.UnmountPath(target, true) })
		_, err := os.Stat(filepath.Join(dir, "moving"))
		must(t, err)
		server.Kill()
		self, err := Self()
		must(t, err)
		want := map[string]string{filepath.Base(target): "/moving//deleted"}
		if diff := cmp.Diff(want, deletedIn(t, s, self.Inode, target)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestScannerFindsMountsBelowAnother sees the mounts that a container, moved over its root, hides from every process.
// Only the kernel's calls can.
func TestScannerFindsMountsBelowAnother(t *testing.T) {
	kerneltest.Needs(t, sys.HasNamespaceWalk)
	dir := t.TempDir()
	inode := parseInode(t, kerneltest.Start(t, "covered", dir).Answer)
	found, _, err := deletedMounts(newScanner(standardLimits))
	must(t, err)
	for _, m := range found {
		if m.Namespace.Inode == inode && strings.HasSuffix(m.Root, "/file//deleted") {
			return
		}
	}
	t.Errorf("not among %d marked mounts", len(found))
}

// TestScannerWithoutRights passes over the machine from a user namespace, where
// no process outside may be asked for its namespace: their mount tables are
// read all the same, each namespace's once.
func TestScannerWithoutRights(t *testing.T) {
	dir := t.TempDir()
	source, target := filepath.Join(dir, "source"), filepath.Join(dir, "target")
	must(t, touch(source))
	must(t, touch(target))
	must(t, sys.BindMount(source, target))
	t.Cleanup(func() { systest.UnmountPath(target, true) })
	must(t, os.Remove(source))
	a := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: true}), "scan")
	var answer scanAnswer
	must(t, json.Unmarshal([]byte(a.Answer), &answer))
	if answer.Survey.Backend != "procfs" || answer.Survey.Denied == 0 {
		t.Errorf("survey %+v, want procfs and some denied", answer.Survey)
	}
	// Ours, and the copy of it that the role runs in.
	var own, others int
	for _, m := range answer.Found {
		switch {
		case m.Point != target:
		case m.Namespace.Inode == 0:
			others++
		default:
			own++
		}
	}
	if own != 1 || others != 1 {
		t.Errorf("found %d times in its own namespace, %d times in others, want once each", own, others)
	}
}

// TestForeignNamespacesComeLast: a namespace that any user can make, with few mounts, comes after one of a container with many. So it does not use
// up the room for mounts before that.
func TestForeignNamespacesComeLast(t *testing.T) {
	kerneltest.Needs(t, sys.HasNamespaceWalk)
	kerneltest.Needs(t, sys.HasNamespaceID)
	native := kerneltest.Flood(t, "", 200, 1)
	foreign := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: true}), "hold")
	var survey Survey
	list, err := kernelScan{limits: standardLimits}.listNamespaces(&survey)
	must(t, err)
	at := map[uint64]int{}
	for i, c := range list {
		at[c.Inode] = i + 1
	}
	first, last := at[inodeOfProcess(t, native.PID)], at[inodeOfProcess(t, foreign.PID)]
	if first == 0 || last == 0 || first > last {
		t.Errorf("the namespace of the node is number %d of %d, and that of another user number %d", first, len(list), last)
	}
}

// TestOwnersAreReadInOneWalk reads the owners of a namespace of the node, of a namespace of another user, and of an ID that no namespace has.
func TestOwnersAreReadInOneWalk(t *testing.T) {
	kerneltest.Needs(t, sys.HasNamespaceWalk)
	kerneltest.Needs(t, sys.HasNamespaceID)
	var list []Namespace
	for _, user := range []bool{false, true} {
		ns, err := Of(kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: user}), "hold").PID)
		must(t, err)
		list = append(list, ns)
	}
	walks := CountWalks()
	owners, err := Owners(append(list, Namespace{ID: ^uint64(0)}))
	must(t, err)
	if n := walks(); n != 1 || len(owners) != 2 {
		t.Errorf("%d walks, %d owners", n, len(owners))
	}
	for _, ns := range list {
		owned, err := ns.Owned()
		must(t, err)
		if owners[ns.ID] == 0 || owners[ns.ID] != owned.UserNamespace {
			t.Errorf("the owner is %d, want %d", owners[ns.ID], owned.UserNamespace)
		}
	}
	if owners[list[0].ID] == owners[list[1].ID] {
		t.Error("both have one owner")
	}
}

func inodeOfProcess(t *testing.T, pid int) uint64 {
	t.Helper()
	ns, err := Of(pid)
	must(t, err)
	return ns.Inode
}
