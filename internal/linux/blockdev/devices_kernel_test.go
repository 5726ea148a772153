// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package blockdev

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/loopback"
)

func TestMain(m *testing.M) {
	kerneltest.Main(m, kerneltest.Roles{
		"hold": kerneltest.Hold,
		// open keeps a device open.
		"open": func(args []string, ready func(string)) error {
			fd, err := sys.OpenShared(args[0])
			if err != nil {
				return err
			}
			defer fd.Close()
			ready("")
			kerneltest.WaitForEnd()
			return nil
		},
	})
}

// runProgram runs a program of the system and gives its output.
func runProgram(t testing.TB, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	if cmd.Err != nil {
		cmd.Path, cmd.Err = filepath.Join("/usr/sbin", program), nil
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// newImage makes a file of that many MiB, of holes.
func newImage(t testing.TB, mib int64) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(mib<<20))
	return f.Name()
}

// newLoop binds a file to a free loop device until the test ends.
func newLoop(t testing.TB, file string, options ...string) Device {
	t.Helper()
	node := loopback.Attach(t, file, options...)
	t.Cleanup(func() { loopback.Detach(t, node, file) })
	return findDevice(t, Sys{}, node)
}

// mountDevice mounts a device until the test ends.
func mountDevice(t testing.TB, fsType, node string) string {
	t.Helper()
	point := t.TempDir()
	must(t, sys.NewMount(node, point, fsType, ""))
	t.Cleanup(func() { systest.UnmountPath(point, true) })
	return point
}

// formatted is a loop device with an ext4 on it.
func formatted(t testing.TB) Device {
	t.Helper()
	d := newLoop(t, newImage(t, 16))
	runProgram(t, "mke2fs", "-q", "-t", "ext4", d.Node())
	return d
}

// newZram is a new zram device with an ext4 on it until the test ends.
func newZram(t testing.TB) Device {
	t.Helper()
	id, err := readText("/sys/class/zram-control/hot_add")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("kernel lacks CONFIG_ZRAM")
	}
	must(t, err)
	device := findDevice(t, Sys{}, "zram"+id)
	t.Cleanup(func() {
		// Processes of the test that have it open close it when they end.
		kerneltest.Await(t, "remove "+device.Name, func() bool {
			return (Sys{}).writeFile("/sys/class/zram-control/hot_remove", id) == nil
		})
	})
	must(t, Sys{}.writeFile(sysfs{}.attributePath(device.Name, "disksize"), "16M"))
	runProgram(t, "mke2fs", "-q", "-t", "ext4", device.Node())
	return findDevice(t, Sys{}, device.Name)
}

func wantBusy(t testing.TB, s Sys, d Device, want bool) {
	t.Helper()
	if busy, err := s.Busy(d); err != nil || busy != want {
		t.Errorf("busy: %v, %v, want %v", busy, err, want)
	}
}

func wantDetach(t testing.TB, s Sys, d Device, want error) {
	t.Helper()
	if err := s.Detach(t.Context(), d); !errors.Is(err, want) {
		t.Errorf("detach: %v, want %v", err, want)
	}
}

// detachFree detaches a device that nothing holds, but that other processes of the machine may look at.
func detachFree(t testing.TB, s Sys, d Device) {
	t.Helper()
	var err error
	kerneltest.Await(t, "detach "+d.Name, func() bool {
		err = s.Detach(t.Context(), d)
		return !errors.Is(err, ErrBusy)
	})
	must(t, err)
}

// wantBound checks the device after a refusal: it is as before, and not marked to be released later.
func wantBound(t testing.TB, d Device, autoclear bool) {
	t.Helper()
	if b, err := (Sys{}).Backing(d); err != nil || b.Autoclear != autoclear {
		t.Errorf("behind the device: %+v, %v, want autoclear %v", b, err, autoclear)
	}
}
