// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

// onEveryBackend runs a test on both ways through the machine.
func onEveryBackend(t *testing.T, test func(t *testing.T, s *Scanner)) {
	t.Helper()
	t.Run("procfs", func(t *testing.T) { test(t, &Scanner{back: &procScan{}}) })
	t.Run("kernel", func(t *testing.T) {
		kerneltest.Needs(t, sys.HasNamespaceWalk)
		kerneltest.Needs(t, sys.HasNamespaceID)
		s := NewScanner()
		if _, ok := s.choose().(*kernelScan); !ok {
			t.Fatal("the kernel's calls were not chosen")
		}
		test(t, s)
	})
}

// refuge is how a mount namespace can be kept alive.
type refuge struct {
	kind Kind
	// hide brings about a namespace in which dir is a mount, and gives its inode.
	hide func(t *testing.T, dir string) uint64
}

var refuges = map[string]refuge{
	"process":                  {kind: Process, hide: holdsIt("hold")},
	"thread":                   {kind: Thread, hide: holdsIt("thread")},
	"process in a chroot":      {kind: Process, hide: holdsIt("chroot")},
	"descriptor":               {kind: Descriptor, hide: holdsIt("descriptor")},
	"file that it is bound to": {kind: NamedMount, hide: bindsIt},
}

// bindsIt binds a namespace to a file and has its process end. The kernel lets
// a namespace be bound only in one with a smaller number, and numbers do not
// grow with time: some need another try.
func bindsIt(t *testing.T, dir string) uint64 {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ns")
	must(t, touch(file))
	var err error
	for range 50 {
		holder := kerneltest.Start(t, "hold", dir)
		err = sys.BindMount("/proc/"+strconv.Itoa(holder.PID)+"/ns/mnt", file)
		holder.End()
		if err == nil {
			t.Cleanup(func() { sys.UnmountPath(file, true) })
			return parseInode(t, holder.Answer)
		}
	}
	t.Fatal(err)
	return 0
}

// holdsIt has a process play a role, which answers with the inode.
func holdsIt(role string) func(*testing.T, string) uint64 {
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

// TestScannerFindsEveryNamespace hides a namespace in every way, finds it, the
// mount in it, and what keeps it.
func TestScannerFindsEveryNamespace(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, s *Scanner) {
		for name, refuge := range refuges {
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

func findNamespace(t *testing.T, s *Scanner, inode uint64) Namespace {
	t.Helper()
	all, survey, err := s.Namespaces()
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

func checkHolders(t *testing.T, s *Scanner, ns Namespace, kind Kind) {
	t.Helper()
	holders, _, err := s.Holders([]Namespace{ns})
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
func checkDevice(t *testing.T, s *Scanner, ns Namespace, dir string) {
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
	found, _, err := s.OnDevice(major, minor)
	must(t, err)
	if len(found) != 1 || found[0].Point != dir || found[0].Source != "held" || found[0].FSType != "tmpfs" || !found[0].Namespace.Same(ns) {
		t.Errorf("on the device: %+v, want %s in %v", found, dir, ns)
	}
}

// TestScannerFindsDeletedSources puts every state of kernel.md's table into a
// namespace of its own, and expects to find those and no others.
func TestScannerFindsDeletedSources(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, s *Scanner) {
		dir := t.TempDir()
		holder := kerneltest.Start(t, "deleted", dir)
		inode := parseInode(t, holder.Answer)
		for _, pass := range []string{"first pass", "second pass"} {
			if diff := cmp.Diff(deletedRoots, deletedIn(t, s, inode, dir)); diff != "" {
				t.Errorf("%s: %s", pass, diff)
			}
		}
	})
}

// deletedIn gives the roots of the marked mounts at or below dir in one
// namespace by the last part of their points. The machine may have others.
func deletedIn(t *testing.T, s *Scanner, inode uint64, dir string) map[string]string {
	t.Helper()
	found, _, err := s.Deleted()
	must(t, err)
	roots := map[string]string{}
	for _, m := range found {
		if m.Namespace.Inode == inode && mountinfo.Within(dir, m.Point) {
			roots[filepath.Base(m.Point)] = m.Root
		}
	}
	return roots
}

// sources are the states of the source of a bind mount. Each is brought about
// in a directory on a file system of its own.
var sources = map[string]struct {
	name string
	dir  bool
	then func(source string) error
	root string // what is to be found; empty where nothing is
}{
	"healthy":       {name: "file", then: nothing},
	"odd":           {name: "sp ace\ttab\nnl\\040#x", then: os.Remove, root: "/odd.d/sp ace\ttab\nnl\\040#x//deleted"},
	"odd-alive":     {name: "sp ace\ttab\nnl\\040#x", then: nothing},
	"parentheses":   {name: "x (deleted)", then: nothing},
	"named-deleted": {name: "deleted", then: nothing},
	"unlinked":      {name: "file", then: os.Remove, root: "/unlinked.d/file//deleted"},
	"renamed-over":  {name: "file", then: renameOver, root: "/renamed-over.d/file//deleted"},
	"recreated":     {name: "file", then: recreate, root: "/recreated.d/file//deleted"},
	"directory":     {name: "dir", dir: true, then: os.Remove, root: "/directory.d/dir//deleted"},
	"hard-link":     {name: "file", then: keepLink, root: "/hard-link.d/file//deleted"},
	"moved":         {name: "file", then: moveAway},
}

var deletedRoots = func() map[string]string {
	roots := map[string]string{}
	for name, source := range sources {
		if source.root != "" {
			roots[name] = source.root
		}
	}
	return roots
}()

func nothing(string) error { return nil }

func touch(name string) error { return os.WriteFile(name, nil, 0o600) }

func renameOver(source string) error {
	if err := touch(source + ".new"); err != nil {
		return err
	}
	return os.Rename(source+".new", source)
}

func recreate(source string) error {
	if err := os.Remove(source); err != nil {
		return err
	}
	return touch(source)
}

func keepLink(source string) error {
	if err := os.Link(source, source+".link"); err != nil {
		return err
	}
	return os.Remove(source)
}

func moveAway(source string) error {
	if err := os.Rename(source, source+".bak"); err != nil {
		return err
	}
	return touch(source)
}

// makeSources brings about all of them on a new file system at dir.
func makeSources(dir string) error {
	if err := sys.NewMount("sources", dir, "tmpfs", ""); err != nil {
		return err
	}
	for name, s := range sources {
		source, target := filepath.Join(dir, name+".d", s.name), filepath.Join(dir, name)
		if err := os.Mkdir(filepath.Dir(source), 0o700); err != nil {
			return err
		}
		create := touch
		if s.dir {
			create = func(name string) error { return os.Mkdir(name, 0o700) }
		}
		for _, err := range []error{create(source), create(target), sys.BindMount(source, target), s.then(source)} {
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// TestSecondPassSeesWhatChanged has a scanner that knows the machine see what
// happens to it afterwards.
func TestSecondPassSeesWhatChanged(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, s *Scanner) {
		dir := t.TempDir()
		must(t, sys.NewMount("changing", dir, "tmpfs", ""))
		t.Cleanup(func() { sys.UnmountPath(dir, true) })
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
		expect("made anew and bound", map[string]string{"first": "/one//deleted", "second": "/one//deleted"})
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

// TestScannerAndFUSE: the mark on a directory that is alive, which is why it is
// only a candidate.
func TestScannerAndFUSE(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, s *Scanner) {
		dir, target := t.TempDir(), t.TempDir()
		server := kerneltest.FUSE(t, dir)
		must(t, sys.BindMount(filepath.Join(dir, "moving"), target))
		t.Cleanup(func() { sys.UnmountPath(target, true) })
		self, err := Self()
		must(t, err)
		if found := deletedIn(t, s, self.Inode, target); len(found) != 0 {
			t.Errorf("found %v before", found)
		}
		_, err = os.Stat(filepath.Join(dir, "moving"))
		must(t, err)
		want := map[string]string{filepath.Base(target): "/moving//deleted"}
		if diff := cmp.Diff(want, deletedIn(t, s, self.Inode, target)); diff != "" {
			t.Error(diff)
		}
		server.Kill() // and nothing waits for a server that is gone
		if diff := cmp.Diff(want, deletedIn(t, s, self.Inode, target)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestScannerFindsMountsBelowAnother sees what a container that was moved over
// its root hides from every process. Only the kernel's calls can.
func TestScannerFindsMountsBelowAnother(t *testing.T) {
	kerneltest.Needs(t, sys.HasNamespaceWalk)
	dir := t.TempDir()
	inode := parseInode(t, kerneltest.Start(t, "covered", dir).Answer)
	found, _, err := NewScanner().Deleted()
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
	t.Cleanup(func() { sys.UnmountPath(target, true) })
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

// TestScannerAndRemovedCgroup: some file systems make up their own roots, and
// never carry the mark.
func TestScannerAndRemovedCgroup(t *testing.T) {
	cgroups, target := t.TempDir(), t.TempDir()
	must(t, sys.NewMount("none", cgroups, "cgroup2", ""))
	t.Cleanup(func() { sys.UnmountPath(cgroups, true) })
	group := filepath.Join(cgroups, "kubediag-"+filepath.Base(filepath.Dir(target)))
	must(t, os.Mkdir(group, 0o700))
	must(t, sys.BindMount(group, target))
	t.Cleanup(func() { sys.UnmountPath(target, true) })
	must(t, os.Remove(group))
	self, err := Self()
	must(t, err)
	onEveryBackend(t, func(t *testing.T, s *Scanner) {
		if found := deletedIn(t, s, self.Inode, target); len(found) != 0 {
			t.Errorf("found %v", found)
		}
	})
}
