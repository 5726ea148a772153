// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sys_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/test/loopback"
)

// loopDevice binds a file of 1 MiB to a free loop device until the test ends.
func loopDevice(t *testing.T) (node, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	node = loopback.Attach(t, file)
	t.Cleanup(func() { loopback.Detach(t, node, file) })
	return node, file
}

// loopFile is the file behind a loop device, as sysfs shows it.
func loopFile(node string) string {
	text, _ := os.ReadFile(filepath.Join("/sys/block", filepath.Base(node), "loop/backing_file"))
	return strings.TrimSpace(string(text))
}

func TestOpenBlockIsTheDeviceOfThatNumber(t *testing.T) {
	node, file := loopDevice(t)
	st, err := sys.StatPath(node, sys.StatType)
	must(t, err)
	if !st.IsBlockDevice() || st.RdevMajor != 7 {
		t.Fatalf("%q is %+v", node, st)
	}
	fd, err := sys.OpenBlock(st.RdevMajor, st.RdevMinor, true)
	must(t, err)
	defer fd.Close()
	if opened, err := fd.Stat(sys.StatType); err != nil || opened.RdevMinor != st.RdevMinor || !opened.IsBlockDevice() {
		t.Errorf("opened %+v, %v, want %+v", opened, err, st)
	}
	backing, err := sys.StatPath(file, sys.StatIno)
	must(t, err)
	loop, err := sys.LoopFD{FD: fd}.LoopStatus()
	if err != nil || loop.File != file || loop.Ino != backing.Ino || loop.Major != backing.Major || loop.Minor != backing.Minor {
		t.Errorf("loop %+v, %v, want file %q, %+v", loop, err, file, backing)
	}
	for name, open := range map[string]func() (*sys.FD, error){
		"number": func() (*sys.FD, error) { return sys.OpenBlock(st.RdevMajor, st.RdevMinor, true) },
		"path":   func() (*sys.FD, error) { return sys.OpenExclusive(node) },
	} {
		if again, err := open(); !errors.Is(err, sys.EBUSY) {
			again.Close()
			t.Errorf("claimed by %s once more: %v, want EBUSY", name, err)
		}
	}
	shared, err := sys.OpenShared(node)
	must(t, err)
	shared.Close()
}

func TestOpenBlockBadInput(t *testing.T) {
	if fd, err := sys.OpenBlock(4000, 1000000, false); !errors.Is(err, sys.ENXIO) && !errors.Is(err, sys.ENODEV) {
		fd.Close()
		t.Errorf("number of nothing: %v", err)
	}
	node, file := loopDevice(t)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(node, link))
	for path, want := range map[string]error{
		"/dev/null": sys.ENOTBLK, file: sys.ENOTBLK, filepath.Dir(file): sys.ENOTBLK, link: sys.ELOOP,
		filepath.Join(file, "x"): sys.ENOTDIR, filepath.Join(filepath.Dir(file), "none"): sys.ENOENT, "a\x00b": sys.EINVAL,
	} {
		if fd, err := sys.OpenExclusive(path); !errors.Is(err, want) {
			fd.Close()
			t.Errorf("open %q: %v, want %v", path, err, want)
		}
	}
}

func TestLoopClear(t *testing.T) {
	node, file := loopDevice(t)
	other, err := sys.OpenShared(node)
	must(t, err)
	defer other.Close()
	fd, err := sys.OpenShared(node)
	must(t, err)
	defer fd.Close()
	loop := sys.LoopFD{FD: fd}
	if err := loop.LoopClear(); !errors.Is(err, sys.EBUSY) {
		t.Errorf("open elsewhere: %v, want EBUSY", err)
	}
	if status, err := loop.LoopStatus(); err != nil || status.Autoclear || status.File != file {
		t.Errorf("after a refusal: %+v, %v", status, err)
	}
	other.Close()
	if err := loop.LoopClear(); err != nil {
		t.Errorf("open nowhere else: %v", err)
	}
	if err := loop.LoopClear(); !errors.Is(err, sys.ENXIO) {
		t.Errorf("once more: %v, want ENXIO", err)
	}
	fd.Close()
	if still := loopFile(node); still == file {
		t.Errorf("still bound to %q", still)
	}
}
