// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

func TestMain(m *testing.M) { kerneltest.Main(m, roles) }

var roles = kerneltest.Roles{
	// hold mounts a file system on each argument and stays.
	"hold": func(args []string, ready func(string)) error {
		if err := holdMounts(args); err != nil {
			return err
		}
		return stayRole(ready)
	},
	// noproc has an empty /proc.
	"noproc": func(_ []string, ready func(string)) error {
		if err := holdMounts([]string{"/proc"}); err != nil {
			return err
		}
		ready("")
		kerneltest.WaitForEnd()
		return nil
	},
	// thread does the same in a namespace that only one of its threads is in.
	"thread": func(args []string, ready func(string)) error {
		return sys.OnThread(func() error {
			if err := sys.UnshareMounts(); err != nil {
				return err
			}
			if err := holdMounts(args); err != nil {
				return err
			}
			return stayRole(ready)
		})
	},
	// chroot does the same and leaves the mounts outside of its root.
	"chroot": func(args []string, ready func(string)) error {
		if err := holdMounts(args); err != nil {
			return err
		}
		inode, err := os.Readlink("/proc/self/ns/mnt")
		if err != nil {
			return err
		}
		if err := systest.Chroot("/usr"); err != nil {
			return err
		}
		ready(inode)
		kerneltest.WaitForEnd()
		return nil
	},
	// descriptor leaves a namespace and keeps a descriptor of it.
	"descriptor": func(args []string, ready func(string)) error {
		var (
			ns   *os.File
			self string // of the thread
		)
		err := sys.OnThread(func() error {
			if err := sys.UnshareMounts(); err != nil {
				return err
			}
			if err := holdMounts(args); err != nil {
				return err
			}
			var err error
			if self, err = os.Readlink("/proc/thread-self"); err != nil {
				return err
			}
			ns, err = os.Open("/proc/thread-self/ns/mnt")
			return err
		})
		if err != nil {
			return err
		}
		defer ns.Close()
		for err == nil { // until the thread has ended, too
			_, err = os.Stat(filepath.Join("/proc", self))
		}
		inode, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(ns.Fd())))
		if err != nil {
			return err
		}
		ready(inode)
		kerneltest.WaitForEnd()
		return nil
	},
	"descriptors": descriptorsRole,
	"crowd":       crowdRole,
	"one":         initRole,
	"follower":    followerRole,
	// scan passes over the machine and reports its finds.
	"scan": func(_ []string, ready func(string)) error {
		found, survey, err := deletedMounts(newScanner(standardLimits))
		if err != nil {
			return err
		}
		answer, err := json.Marshal(scanAnswer{Survey: survey, Found: found})
		ready(string(answer))
		return err
	},
	// covered binds a file that is then removed, and moves another file system
	// over the root, as a runtime does that must not pivot.
	"covered": func(args []string, ready func(string)) error {
		if err := holdMounts(args); err != nil {
			return err
		}
		inode, err := os.Readlink("/proc/self/ns/mnt")
		if err != nil {
			return err
		}
		file, target := filepath.Join(args[0], "file"), filepath.Join(args[0], "target")
		newRoot := filepath.Join(args[0], "root")
		for _, err := range []error{
			touch(file), touch(target), sys.BindMount(file, target), os.Remove(file),
			os.Mkdir(newRoot, 0o700), sys.NewMount("root", newRoot, "tmpfs", ""),
			os.Chdir(newRoot), systest.MoveMountTo(".", "/"), systest.Chroot("."),
		} {
			if err != nil {
				return err
			}
		}
		ready(inode)
		kerneltest.WaitForEnd()
		return nil
	},
}

// scanAnswer is the answer of the role scan.
type scanAnswer struct {
	Survey Survey
	Found  []Mount
}

// holdMounts makes the namespace private and mounts a file system on each dir.
func holdMounts(dirs []string) error {
	if err := sys.SetPropagation("/", sys.Private, true); err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := sys.NewMount("held", dir, "tmpfs", ""); err != nil {
			return err
		}
	}
	return nil
}

// stayRole says which namespace the calling thread is in and waits for the end.
func stayRole(ready func(string)) error {
	inode, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	ready(inode)
	kerneltest.WaitForEnd()
	return nil
}

var must = kerneltest.Must

func TestDoRunsInsideAndNowhereElse(t *testing.T) {
	dir := t.TempDir()
	holder := kerneltest.Start(t, "hold", dir)
	ns, err := Of(holder.PID)
	must(t, err)
	before, err := Self()
	must(t, err)
	must(t, ns.Do(func() error {
		inside, err := Self()
		if err != nil {
			return err
		}
		if !inside.Same(ns) {
			t.Errorf("inside is %v, want %v", inside, ns)
		}
		table, err := Table(0)
		if err != nil {
			return err
		}
		if m, ok := table.Top(dir); !ok || m.Source != "held" {
			t.Errorf("top of %s: %v %v", dir, m, ok)
		}
		return os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
	}))
	after, err := Self()
	must(t, err)
	if !after.Same(before) {
		t.Error("the caller was moved")
	}
	if _, err := os.Stat(filepath.Join(dir, "file")); err == nil {
		t.Error("file was written outside")
	}
}

// TestDoBearsChildrenInside starts a program there, as a script processor does.
func TestDoBearsChildrenInside(t *testing.T) {
	dir := t.TempDir()
	holder := kerneltest.Start(t, "hold", dir)
	ns, err := Of(holder.PID)
	must(t, err)
	must(t, ns.Do(func() error {
		out, err := exec.Command("readlink", "/proc/self/ns/mnt").Output()
		if got := strings.TrimSpace(string(out)); err == nil && got != ns.String() {
			t.Errorf("child in %s, want %v", got, ns)
		}
		return err
	}))
}

// TestDoWithinDo goes from one namespace to another, and stays where it is
// when that is asked.
func TestDoWithinDo(t *testing.T) {
	first, err := Of(kerneltest.Start(t, "hold").PID)
	must(t, err)
	second, err := Of(kerneltest.Start(t, "hold").PID)
	must(t, err)
	expect := func(want Namespace) func() error {
		return func() error {
			got, err := Self()
			if err == nil && !got.Same(want) {
				t.Errorf("in %v, want %v", got, want)
			}
			return err
		}
	}
	must(t, first.Do(func() error {
		if err := first.Do(expect(first)); err != nil {
			return err
		}
		if err := second.Do(expect(second)); err != nil {
			return err
		}
		return expect(first)()
	}))
}

// TestDoUsesNoForgedProc enters a namespace whose /proc is an empty directory.
func TestDoUsesNoForgedProc(t *testing.T) {
	ns, err := Of(kerneltest.Start(t, "noproc").PID)
	must(t, err)
	must(t, ns.Do(func() error {
		if _, err := os.Stat("/proc/self"); err == nil {
			t.Error("there is a /proc/self; the test shows nothing")
		}
		inside, err := Self()
		if err == nil && !inside.Same(ns) {
			t.Errorf("inside is %v, want %v", inside, ns)
		}
		return err
	}))
}

// TestNothingStaysOpen: no namespace is pinned after its last process is gone.
func TestNothingStaysOpen(t *testing.T) {
	holder := kerneltest.Start(t, "hold")
	ns, err := Of(holder.PID)
	must(t, err)
	_, err = Table(holder.PID)
	must(t, err)
	must(t, ns.Do(func() error { return nil }))
	holder.End()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range entries {
		if link, _ := os.Readlink("/proc/self/fd/" + e.Name()); link == ns.String() ||
			link == "/proc/"+strconv.Itoa(holder.PID)+"/mountinfo" {
			t.Errorf("descriptor %s still open: %s", e.Name(), link)
		}
	}
}
