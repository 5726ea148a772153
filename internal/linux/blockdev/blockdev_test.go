// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

var must = kerneltest.Must

// recordedSys lays out a tree of testdata: a line is "path = text", with "|" for
// newlines, or "path -> target of the link".
func recordedSys(t testing.TB, name string) Sys {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	must(t, err)
	return layOut(t, string(text))
}

func layOut(t testing.TB, text string) Sys {
	t.Helper()
	root := t.TempDir()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if name, target, ok := strings.Cut(line, " -> "); ok {
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700))
			must(t, os.Symlink(target, filepath.Join(root, name)))
			continue
		}
		name, content, _ := strings.Cut(line, " =")
		content = strings.ReplaceAll(strings.TrimPrefix(content, " "), "|", "\n") + "\n"
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o600))
	}
	return Sys{Root: root}
}

func findDevice(t testing.TB, s Sys, spec string) Device {
	t.Helper()
	d, err := s.Resolve(spec)
	must(t, err)
	return d
}

func TestParseNumber(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Number{
		"7:1": {7, 1}, "0:0": {}, "4095:1048575": {4095, 1048575}, "252:048": {252, 48},
	} {
		if n, err := parseNumber(text); err != nil || n != want {
			t.Errorf("parse %q: %v, %v, want %v", text, n, err, want)
		}
	}
	for _, text := range []string{
		"", ":", "7", "7:", ":1", "7:1:2", "-7:1", "+7:1", "7: 1", "0x7:1", "7:1\n", "4096:0", "0:1048576",
		"18446744073709551616:0", "7:99999999999999999999999", "٧:١",
	} {
		if n, err := parseNumber(text); err == nil || !strings.Contains(err.Error(), "device number") {
			t.Errorf("parse %q: %v, %v, want an error that shows it", text, n, err)
		}
	}
}

func FuzzParseNumber(f *testing.F) {
	f.Add("7:1")
	f.Add("4095:1048575")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseNumber(text)
		if err != nil {
			return
		}
		if again, err := parseNumber(n.String()); err != nil || again != n || n.Major > 4095 || n.Minor > 1048575 {
			t.Errorf("%q is %v, that is %v, %v", text, n, again, err)
		}
	})
}

func TestResolveDistinguishesKinds(t *testing.T) {
	t.Parallel()
	sys := recordedSys(t, "node.tree")
	for spec, want := range map[string]Device{
		"sda":        {Number: Number{8, 0}, Name: "sda", Kind: Other, Sequence: 1},
		"8:0":        {Number: Number{8, 0}, Name: "sda", Kind: Other, Sequence: 1},
		"8:1":        {Number: Number{8, 1}, Name: "sda1", Kind: Other, Parent: "sda", Sequence: 1},
		"dm-0":       {Number: Number{253, 0}, Name: "dm-0", Kind: DM},
		"md127":      {Number: Number{9, 127}, Name: "md127", Kind: MD},
		"252:48":     {Number: Number{252, 48}, Name: "rbd3", Kind: KRBD, Sequence: 12},
		"rbd3p1":     {Number: Number{252, 49}, Name: "rbd3p1", Kind: KRBD, Parent: "rbd3", Sequence: 12},
		"cciss!c0d0": {Number: Number{104, 0}, Name: "cciss!c0d0", Kind: Other},
		// A device of that name which krbd does not know by that number.
		"rbd4": {Number: Number{7, 4}, Name: "rbd4", Kind: Other},
	} {
		d, err := sys.Resolve(spec)
		if diff := cmp.Diff(want, d); err != nil || diff != "" {
			t.Errorf("resolve %q: %v\n%s", spec, err, diff)
		}
	}
	if node := findDevice(t, sys, "cciss!c0d0").Node(); node != "/dev/cciss/c0d0" {
		t.Errorf("node %q", node)
	}
}

func TestResolveBadInput(t *testing.T) {
	t.Parallel()
	s := recordedSys(t, "node.tree")
	must(t, os.MkdirAll(s.newSysfs().pathAt("dev/dir"), 0o700))
	must(t, os.WriteFile(s.newSysfs().pathAt("dev/file"), nil, 0o600))
	for name, target := range map[string]string{"a": "b", "b": "/dev/a", "up": "../../../../dev/file", "proc": "/proc/self/fd/3"} {
		must(t, os.Symlink(target, s.newSysfs().pathAt("dev/"+name)))
	}
	for spec, want := range map[string]error{
		"":                 nil,
		"sda\x00":          nil,
		"/dev/sda\x00":     nil,
		"dev/sda":          nil,
		"../sda":           nil,
		"7:x":              nil,
		"4096:1":           nil,
		"99999999999999:1": nil,
		".":                ErrNotFound,
		"..":               ErrNotFound,
		"rbd99":            ErrNotFound,
		"nvme0c0n1":        ErrNotFound, // a hidden disk has no number
		"252:49":           ErrNotFound,
		"9:9":              ErrNotFound, // sysfs leads to a device of another number
		"/dev/rbd3":        ErrNotFound,
		"/dev/file/x":      ErrNotFound,
		"/dev/dir":         ErrNotBlock,
		"/dev/file":        ErrNotBlock,
		"/dev/up":          ErrNotBlock,
		"/":                ErrNotBlock,
		"/dev/..":          ErrNotBlock,
		"/proc/1/cwd/dev":  ErrNotBlock,
		"/dev/proc":        ErrNotBlock,
		"/dev/a":           sys.ELOOP,

		strings.Repeat("x", 300):        sys.Errno(36), // ENAMETOOLONG
		"/" + strings.Repeat("x", 5000): sys.Errno(36),
	} {
		_, err := s.Resolve(spec)
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("resolve %q: %v, want %v", spec, err, want)
			continue
		}
		if !strings.HasPrefix(err.Error(), "resolve device \"") || strings.ContainsRune(err.Error(), 0) {
			t.Errorf("resolve %q: %q does not show it", spec, err)
		}
	}
}

func TestAllLeavesOutWhatHasNoNumber(t *testing.T) {
	t.Parallel()
	devices, err := recordedSys(t, "node.tree").All()
	must(t, err)
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	want := []string{"cciss!c0d0", "dm-0", "dm-1", "md127", "rbd3", "rbd3p1", "rbd4", "sda", "sda1", "sda2", "sda3"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	if _, err := (Sys{Root: t.TempDir()}).All(); err == nil {
		t.Error("no error without sysfs")
	}
}

func TestFileSystemsOfRelatives(t *testing.T) {
	t.Parallel()
	sys := recordedSys(t, "node.tree")
	ext4 := FileSystem{Type: "ext4", Number: Number{8, 1}, Evidence: "/sys/fs/ext4/sda1"}
	for name, want := range map[string][]FileSystem{
		"sda":  {ext4},
		"sda1": {ext4},
		"sda2": nil,
		"dm-0": {{Type: "xfs", Number: Number{253, 0}, Evidence: "/sys/fs/xfs/dm-0"}},
		"rbd3": nil, // directories that any user can make are no file systems
	} {
		found, err := sys.FileSystems(findDevice(t, sys, name))
		if diff := cmp.Diff(want, found); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
}

func TestFileSystemsOfSeveralDevices(t *testing.T) {
	t.Parallel()
	s := recordedSys(t, "btrfs.tree")
	for name, want := range map[string]bool{"loop0": true, "loop1": true, "loop2": false} {
		found, err := s.FileSystems(findDevice(t, s, name))
		must(t, err)
		if want != (len(found) == 1) {
			t.Fatalf("%s: %+v", name, found)
		}
		if want && !cmp.Equal(found[0].Members, []string{"loop0", "loop1"}) || want && found[0].Type != "btrfs" {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

func TestJournalOfUnknownOwner(t *testing.T) {
	t.Parallel()
	sys := recordedSys(t, "node.tree")
	must(t, os.MkdirAll(sys.newSysfs().pathAt("proc/fs/jbd2/sda3"), 0o700))
	want := []FileSystem{{Type: "ext4", Journal: true, Evidence: "/proc/fs/jbd2/sda3"}}
	// The number of sda1's thread leads to one that does not write on sda3.
	found, err := sys.FileSystems(findDevice(t, sys, "sda3"))
	if diff := cmp.Diff(want, found); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	must(t, os.WriteFile(sys.newSysfs().pathAt("proc/411/comm"), []byte("jbd2/sda3\n"), 0o600))
	want = []FileSystem{{Type: "ext4", Number: Number{8, 1}, Journal: true, Evidence: "/sys/fs/ext4/sda1/journal_task"}}
	found, err = sys.FileSystems(findDevice(t, sys, "sda3"))
	if diff := cmp.Diff(want, found); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	sys := recordedSys(t, "node.tree")
	device := func(name string) Device { return findDevice(t, sys, name) }
	lvm := User{Kind: Stacked, Device: device("dm-0"), Evidence: "/sys/class/block/sda2/holders/dm-0"}
	swap := User{Kind: Swap, Device: device("sda3"), Path: "/dev/sda3", Evidence: "/proc/swaps"}
	for name, want := range map[string][]User{
		"sda":  {swap, lvm},
		"sda1": nil,
		"sda2": {lvm},
		"sda3": {swap},
		"dm-0": nil,
		"dm-1": {{Kind: Swap, Device: device("dm-1"), Path: "/dev/mapper/vg0-swap", Evidence: "/proc/swaps"}},
		"rbd3": nil,
	} {
		users, err := sys.Users(device(name))
		if diff := cmp.Diff(want, users); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
}

func TestUsed(t *testing.T) {
	t.Parallel()
	s := recordedSys(t, "node.tree")
	for name, want := range map[string]bool{"sda1": true, "sda2": true, "sda3": true, "dm-0": true, "md127": false, "rbd3": false} {
		if used := s.hasKnownUser(findDevice(t, s, name)); used != want {
			t.Errorf("%s used: %v, want %v", name, used, want)
		}
	}
}

func TestStat(t *testing.T) {
	t.Parallel()
	sys := recordedSys(t, "node.tree")
	for name, want := range map[string]Activity{
		"sda":  {Reads: 633, Writes: 1059, InFlight: 1, Discards: 12, Flushes: 5},
		"sda1": {Reads: 33, Writes: 59}, // as before 4.18
	} {
		if a, err := sys.Stat(findDevice(t, sys, name)); err != nil || a != want {
			t.Errorf("%s: %+v, %v, want %+v", name, a, err, want)
		}
	}
	for name, want := range map[string]error{"rbd3": ErrNotCounted, "dm-0": ErrNotFound} {
		if _, err := sys.Stat(findDevice(t, sys, name)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	for _, text := range []string{"", "1 2 3", "x 0 0 0 0 0 0 0 0 0 0", "0 0 0 0 -1 0 0 0 0 0 0"} {
		if a, err := parseCounters(text); err == nil {
			t.Errorf("%q is %+v", text, a)
		}
	}
}

func TestParseSwaps(t *testing.T) {
	t.Parallel()
	text := "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n" +
		"/dev/sda3                               partition\t999420\t\t0\t\t-2\n" +
		`/a\040b\011c\012d\134040` + "\tfile\t10\t0\t-3\n" +
		"/cut\n\n" + `/x\040(deleted)` + "\tpartition\t10\t0\t-3\n"
	want := []swapArea{{path: "/dev/sda3"}, {path: "/a b\tc\nd\\040", isFile: true}, {path: "/x"}}
	if diff := cmp.Diff(want, parseSwaps(text), cmp.AllowUnexported(swapArea{})); diff != "" {
		t.Error(diff)
	}
}

func TestBackingOfOthers(t *testing.T) {
	t.Parallel()
	s := recordedSys(t, "btrfs.tree")
	if _, err := s.Backing(findDevice(t, s, "loop2")); !errors.Is(err, ErrNotAttached) {
		t.Errorf("free loop device: %v", err)
	}
	s = recordedSys(t, "node.tree")
	if _, err := s.Backing(findDevice(t, s, "rbd3")); err == nil || errors.Is(err, ErrNotAttached) {
		t.Errorf("krbd device: %v", err)
	}
}

// TestLoopsOver: of all devices only those are read that are loop devices over wanted files.
func TestLoopsOver(t *testing.T) {
	t.Parallel()
	s := layOut(t, `
sys/class/block/loop0/dev = 7:0
sys/class/block/loop0/loop/backing_file = /k/a
sys/class/block/loop1/dev = 7:1
sys/class/block/loop1/loop/backing_file = /srv/b
sys/class/block/loop2/dev = 7:2
sys/class/block/loop3/loop/backing_file = /k/gone
sys/class/block/nameless/dev = none
`)
	var asked []string
	got, err := s.LoopsOver(func(file string) bool {
		asked = append(asked, file)
		return strings.HasPrefix(file, "/k/")
	})
	if err != nil || len(got) != 1 || got[0].Name != "loop0" || got[0].Kind != Loop || !slices.Equal(asked, []string{"/k/a", "/srv/b", "/k/gone"}) {
		t.Errorf("%+v, %v, asked about %q", got, err, asked)
	}
	if _, err := (Sys{Root: t.TempDir()}).LoopsOver(func(string) bool { return true }); err == nil {
		t.Error("a machine whose devices cannot be listed has none")
	}
}
