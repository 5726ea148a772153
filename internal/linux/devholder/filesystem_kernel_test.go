// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package devholder

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/holders"
	"kubediag.org/kubediag/test/loopback"
)

// fileSystems mount a file system that is on no device at a directory of the test's namespace.
var fileSystems = map[string]func(t *testing.T, dir string){
	"tmpfs": func(t *testing.T, dir string) { mountHere(t, dir, "tmpfs", "") },
	"overlay": func(t *testing.T, dir string) {
		base := filepath.Join(filepath.Dir(dir), "layers")
		must(t, os.Mkdir(base, 0o700))
		mountHere(t, base, "tmpfs", "")
		for _, name := range []string{"lower", "upper", "work"} {
			must(t, os.Mkdir(filepath.Join(base, name), 0o700))
		}
		mountHere(t, dir, "overlay", fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", base))
	},
	"fuse": func(t *testing.T, dir string) { kerneltest.FUSE(t, dir) },
}

func mountHere(t *testing.T, dir, fsType, data string) {
	t.Helper()
	must(t, sys.NewMount("held", dir, fsType, data))
	t.Cleanup(func() { systest.UnmountPath(dir, true) })
}

// uses are the ways to use a file system by one of its mounts, and the holder that is then found; its path is below the mount.
var uses = map[string]struct {
	kind Kind
	path string
	// writes is whether it makes a file, which the file system of the test's daemon lacks.
	writes bool
	begin  func(dir string) (holders.Kept, error)
}{
	"file": {OpenFile, "file", true, holders.OpenFile},
	"open directory": {OpenFile, "dir", false, func(dir string) (holders.Kept, error) {
		f, err := os.Open(filepath.Join(dir, "dir"))
		return holders.Kept{End: f.Close}, err
	}},
	"working directory": {WorkingDirectory, "", false, func(dir string) (holders.Kept, error) { return holders.Kept{}, os.Chdir(dir) }},
	"root":              {RootDirectory, "", false, func(dir string) (holders.Kept, error) { return holders.Kept{}, systest.Chroot(dir) }},
	"program":           {Program, "program", true, runProgram},
	"mapping":           {Mapping, "library", true, holders.RunLibrary},
	"overlay":           {OverlayLayer, "../merged", true, holders.OverlayOn},
	"loop":              {LoopDevice, "", true, holders.LoopOn},
}

// useRole uses the file system at a directory in a way.
func useRole(args []string, ready func(string)) error {
	k, err := uses[args[0]].begin(args[1])
	if err != nil {
		return err
	}
	return k.Stay(ready)
}

// mountAt is the test's mount at a directory.
func mountAt(t *testing.T, dir string) mountinfo.Mount {
	t.Helper()
	table, err := mountns.Table(0)
	must(t, err)
	m, ok := table.Top(dir)
	if !ok {
		t.Fatalf("nothing is mounted at %s", dir)
	}
	return m
}

// TestUsersOfFileSystems uses file systems of several types in every way. Each user is found, with the mount by which it has its
// file, and nothing else is.
func TestUsersOfFileSystems(t *testing.T) {
	for fsType, mount := range fileSystems {
		for name, use := range uses {
			if fsType == "fuse" && use.writes || fsType == "overlay" && use.kind == OverlayLayer || fsType != "fuse" && name == "open directory" {
				continue
			}
			t.Run(fsType+", "+name, func(t *testing.T) {
				base, err := os.MkdirTemp("", "users")
				must(t, err)
				t.Cleanup(func() { os.RemoveAll(base) })
				dir := filepath.Join(base, "mnt")
				must(t, os.Mkdir(dir, 0o700))
				mount(t, dir)
				f := &Finder{WithProcesses: true}
				d, err := f.DeviceOf(mountAt(t, dir))
				must(t, err)
				if others := usersOf(t, f, d); len(others) > 0 || d.Kind != blockdev.Anonymous {
					t.Fatalf("unused, of kind %q: %+v", d.Kind, others)
				}
				a := kerneltest.StartWith(t, nil, "use", name, dir)
				pid, err := strconv.Atoi(a.Answer)
				must(t, err)
				want := Holder{Kind: use.kind, PIDs: []int{pid}, Path: filepath.Join(dir, use.path)}
				found := usersOf(t, f, d)
				if layers := len(found) == 2 && use.kind == OverlayLayer && found[1].Path == found[0].Path; len(found) != 1 && !layers {
					t.Fatalf("%d users: %+v", len(found), found)
				}
				got := found[0]
				switch use.kind {
				case OverlayLayer:
					want.PIDs = nil
				case LoopDevice:
					want.PIDs, want.Path = nil, got.Path
				default:
					if got.Through.Point != dir || got.Through.ID != mountAt(t, dir).ID {
						t.Errorf("by mount %+v", got.Through)
					}
				}
				if diff := cmp.Diff(want, Holder{Kind: got.Kind, PIDs: got.PIDs, Path: got.Path}); diff != "" {
					t.Error(diff)
				}
				if use.kind == OverlayLayer {
					must(t, systest.UnmountPath(got.Path, false))
				}
			})
		}
	}
}

// TestUsersWhereATableWasRead: the mounts of the host were read from its mountinfo, which has no unique IDs, and another namespace has a copy
// whose unique ID is known. Each user is found with its mount all the same.
func TestUsersWhereATableWasRead(t *testing.T) {
	dir := t.TempDir()
	mountHere(t, dir, "tmpfs", "")
	kerneltest.StartWith(t, nil, "use", "file", dir)
	kerneltest.StartWith(t, nil, "use", "mapping", dir)
	kerneltest.Start(t, "copy")
	own := mountAt(t, dir)
	host, err := mountns.Self()
	must(t, err)
	table, err := mountns.Table(0)
	must(t, err)
	f := &Finder{WithProcesses: true, Pass: mountns.NewPass(host, table)}
	d, err := f.DeviceOf(own)
	must(t, err)
	kinds := map[Kind]int{}
	for _, h := range usersOf(t, f, d) {
		if kinds[h.Kind]++; h.Through.ID != own.ID || h.Through.Point != dir {
			t.Errorf("%s of %q by mount %+v: %s", h.Kind, h.Path, h.Through, h.Detail)
		}
	}
	if diff := cmp.Diff(map[Kind]int{OpenFile: 1, Mapping: 1}, kinds); diff != "" {
		t.Errorf("users (-want +got):\n%s", diff)
	}
}

// usersOf are the holders that are no mounts.
func usersOf(t *testing.T, f *Finder, d blockdev.Device) []Holder {
	t.Helper()
	r, err := f.Find(t.Context(), d)
	must(t, err)
	if len(r.Holders) == 0 || r.Holders[0].Kind != Mount || !r.Busy || len(r.FileSystems) != 1 {
		t.Fatalf("found %+v, busy %t, file systems %v", r.Holders, r.Busy, r.FileSystems)
	}
	return slices.DeleteFunc(r.Holders, func(h Holder) bool { return h.Kind == Mount })
}

// TestLoopOnAFileSystemThatIsSilent has a loop device over a file of a FUSE file system whose server is gone, or stopped. The device says nothing of its
// file then, and the path of the file shows where it is, unless another mount that may be silent hides it.
func TestLoopOnAFileSystemThatIsSilent(t *testing.T) {
	signal := func(server *kerneltest.Actor, name string) {
		_ = exec.Command("kill", "-"+name, strconv.Itoa(server.PID)).Run() // it may have ended
	}
	for name, silence := range map[string]func(server *kerneltest.Actor){
		"gone":    (*kerneltest.Actor).End,
		"stopped": func(server *kerneltest.Actor) { signal(server, "STOP") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			server := kerneltest.FUSE(t, dir)
			file := filepath.Join(dir, "zeros")
			node := loopback.Attach(t, file, "--read-only")
			t.Cleanup(func() { loopback.Detach(t, node, file) })
			silence(server)
			t.Cleanup(func() { signal(server, "CONT") })
			f := &Finder{WithProcesses: true}
			d, err := f.DeviceOf(mountAt(t, dir))
			must(t, err)
			found := usersOf(t, f, d)
			if len(found) != 1 || found[0].Kind != LoopDevice || found[0].Path != node || found[0].File != file || !strings.Contains(found[0].Detail, "by the path of the file") {
				t.Errorf("users %+v, want %s", found, node)
			}
			if name == "stopped" { // nothing can be mounted there, which would wait
				return
			}
			kerneltest.FUSE(t, dir)
			r, err := f.Find(t.Context(), d)
			must(t, err)
			if slices.ContainsFunc(r.Holders, func(h Holder) bool { return h.Kind == LoopDevice }) || r.Coverage.SilentLoops == 0 ||
				!strings.Contains(r.Coverage.String(), "that do") && !strings.Contains(r.Coverage.String(), "that does") {
				t.Errorf("below another mount: %+v, %s", r.Holders, r.Coverage)
			}
		})
	}
}

// TestFileSystemWithoutAMount has one live on after a lazy unmount until its last file is closed. Its number may be another's then; one
// that no file system has yet finds none.
func TestFileSystemWithoutAMount(t *testing.T) {
	dir := t.TempDir()
	must(t, sys.NewMount("held", dir, "tmpfs", ""))
	f := &Finder{}
	d, err := f.DeviceOf(mountAt(t, dir))
	must(t, err)
	file, err := os.Create(filepath.Join(dir, "file"))
	must(t, err)
	defer file.Close()
	must(t, systest.UnmountPath(dir, true))
	r, err := f.Find(t.Context(), d)
	must(t, err)
	if want := processSummary(OpenFile, "/file", os.Getpid()); cmp.Diff(want, holderSummaries(r)) != "" || !r.Busy || r.Holders[0].Through.ID != 0 {
		t.Errorf("lazily unmounted: %+v", r.Holders)
	}
	must(t, file.Close())
	r, err = f.Find(t.Context(), d)
	if err == nil {
		for _, h := range r.Holders {
			if slices.Contains(h.PIDs, os.Getpid()) {
				t.Errorf("still used: %+v", h)
			}
		}
	} else if !errors.Is(err, blockdev.ErrNotFound) {
		t.Error(err)
	}
	unused := blockdev.Device{Number: blockdev.Number{Minor: 1<<20 - 1}, Name: "0:1048575", Kind: blockdev.Anonymous}
	if _, err := f.Find(t.Context(), unused); !errors.Is(err, blockdev.ErrNotFound) {
		t.Errorf("of no file system: %v", err)
	}
}
