// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package blockdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

func TestDetachLoop(t *testing.T) {
	device := formatted(t)
	b, err := Sys{}.Backing(device)
	must(t, err)
	st, err := sys.StatPath(b.File, sys.StatIno)
	if err != nil || b.Ino != st.Ino || b.Number != (Number{st.Major, st.Minor}) || b.Device != (Number{}) {
		t.Errorf("backing %+v, %v, want file %+v", b, err, st)
	}
	point := mountDevice(t, "ext4", device.Node())
	holder := kerneltest.Start(t, "hold")
	must(t, systest.UnmountPath(point, false))
	wantDetach(t, Sys{}, device, ErrBusy)
	wantBound(t, device, false)
	holder.End()
	detachFree(t, Sys{}, device)
	kerneltest.Await(t, "nothing attached", func() bool { // another program of the machine may have the free device for a while
		_, behind := Sys{}.Backing(device)
		return errors.Is(behind, ErrNotAttached) && errors.Is((Sys{}).Detach(t.Context(), device), ErrNotAttached)
	})
}

// TestDetachLoopThatIsOpen: the kernel would say yes and only mark the device,
// which then goes at an unknown time.
func TestDetachLoopThatIsOpen(t *testing.T) {
	device := formatted(t)
	opener := kerneltest.Start(t, "open", device.Node())
	wantBusy(t, Sys{}, device, false)
	wantDetach(t, Sys{}, device, ErrBusy)
	wantBound(t, device, false)
	opener.End()
	wantBound(t, device, false)
	detachFree(t, Sys{}, device)
}

// TestDetachLoopKeepsTheMarkOfOthers: the mark that its user has set stays, as well.
func TestDetachLoopKeepsTheMarkOfOthers(t *testing.T) {
	device := formatted(t)
	point := mountDevice(t, "ext4", device.Node())
	runProgram(t, "losetup", "--detach", device.Node())
	wantBound(t, device, true)
	wantDetach(t, Sys{}, device, ErrBusy)
	wantBound(t, device, true)
	must(t, systest.UnmountPath(point, false))
	kerneltest.Await(t, "released by the kernel", func() bool {
		return errors.Is((Sys{}).Detach(t.Context(), device), ErrNotAttached)
	})
}

// TestDetachLoopThatIsAnother: it is known by its number, and where the kernel has none, by its file.
func TestDetachLoopThatIsAnother(t *testing.T) {
	device := newLoop(t, newImage(t, 1))
	t.Run("number", func(t *testing.T) {
		kerneltest.Needs(t, sys.HasDiskSequence)
		before := device
		before.Sequence--
		wantDetach(t, Sys{}, before, ErrChanged)
		wantBound(t, device, false)
	})
	t.Run("file", func(t *testing.T) {
		before := device
		before.Sequence, before.Image = 0, Sys{}.newSysfs().imageOf(Loop, newLoop(t, newImage(t, 1)).Name)
		wantDetach(t, Sys{}, before, ErrChanged)
		wantBound(t, device, false)
	})
}

func TestDetachZram(t *testing.T) {
	device := newZram(t)
	if device.Kind != Zram {
		t.Fatalf("%+v", device)
	}
	point := mountDevice(t, "ext4", device.Node())
	holder := kerneltest.Start(t, "hold")
	must(t, systest.UnmountPath(point, false))
	wantBusy(t, Sys{}, device, true)
	wantDetach(t, Sys{}, device, ErrBusy)
	// The kernel's answer to the write itself.
	if err := (Sys{}).writeOrder(t.Context(), (sysfs{}).attributePath(device.Name, "reset"), "1"); !errors.Is(err, ErrBusy) || !errors.Is(err, sys.EBUSY) {
		t.Errorf("reset while it is mounted elsewhere: %v, want EBUSY", err)
	}
	holder.End()
	kerneltest.Await(t, "free", func() bool { busy, err := Sys{}.Busy(device); return err == nil && !busy })

	opener := kerneltest.Start(t, "open", device.Node())
	wantDetach(t, Sys{}, device, ErrBusy)
	if state, err := (sysfs{}).readAttribute(device.Name, "initstate"); err != nil || state != "1" {
		t.Errorf("state %q, %v: a refusal changed it", state, err)
	}
	opener.End()
	detachFree(t, Sys{}, device)
	if err := (Sys{}).Detach(t.Context(), device); !errors.Is(err, ErrNotAttached) && !errors.Is(err, ErrChanged) {
		t.Errorf("once more: %v, want nothing attached", err)
	}
}

// fakeKRBD is a root in which a real loop device is called rbd0, with krbd's files as
// Documentation/ABI/testing/sysfs-bus-rbd has them: this machine has no krbd. Its driver answers each write.
func fakeKRBD(t *testing.T, single bool, answer func(s Sys, text string) error) (Sys, Device) {
	t.Helper()
	d := formatted(t)
	tree := fmt.Sprintf("sys/class/block/rbd0 -> ../../devices/rbd/0/block/rbd0\n"+
		"sys/dev/block/%[1]v -> ../../devices/rbd/0/block/rbd0\n"+
		"sys/devices/rbd/0/block/rbd0/dev = %[1]v\n"+
		"sys/devices/rbd/0/block/rbd0/diskseq = 5\n"+
		"sys/bus/rbd/devices/0/major = %[2]d\nsys/bus/rbd/devices/0/minor = %[3]d\n"+
		"sys/bus/rbd/remove =\n", d.Number, d.Major, d.Minor)
	file := "remove"
	if single {
		file = "remove_single_major"
		tree += "sys/bus/rbd/remove_single_major =\n"
	}
	sys := layOut(t, tree)
	sys.Write = func(path, text string) error {
		if path != sys.newSysfs().pathAt("sys/bus/rbd/"+file) || text != "0" {
			t.Errorf("%q written to %q", text, path)
		}
		return answer(sys, text)
	}
	return sys, findDevice(t, sys, "rbd0")
}

// removeDevice acts like the kernel when it removes the device.
func removeDevice(s Sys, _ string) error {
	return errors.Join(
		os.RemoveAll(s.newSysfs().pathAt("sys/bus/rbd/devices/0")), os.RemoveAll(s.newSysfs().pathAt("sys/devices/rbd/0")),
		os.Remove(s.newSysfs().pathAt("sys/class/block/rbd0")),
	)
}

func TestDetachKRBD(t *testing.T) {
	for name, single := range map[string]bool{"a major for each": false, "one major": true} {
		t.Run(name, func(t *testing.T) {
			sys, device := fakeKRBD(t, single, removeDevice)
			if device.Kind != KRBD {
				t.Fatalf("%+v", device)
			}
			point := mountDevice(t, "ext4", "/dev/"+findDevice(t, Sys{}, device.Number.String()).Name)
			holder := kerneltest.Start(t, "hold")
			must(t, systest.UnmountPath(point, false))
			wantDetach(t, sys, device, ErrBusy)
			if !pathExists(sys.newSysfs().imagePath("0")) {
				t.Fatal("removed while it was mounted elsewhere")
			}
			holder.End()
			kerneltest.Await(t, "free", func() bool { busy, err := sys.Busy(device); return err == nil && !busy })
			detachFree(t, sys, device)
			wantDetach(t, sys, device, ErrNotFound)
		})
	}
}

func TestDetachKRBDRefused(t *testing.T) {
	for name, row := range map[string]struct {
		answer func(Sys, string) error
		want   error
	}{
		"open":         {func(Sys, string) error { return &os.PathError{Op: "write", Err: sys.EBUSY} }, ErrBusy},
		"gone":         {func(Sys, string) error { return &os.PathError{Op: "write", Err: sys.ENOENT} }, ErrNotFound},
		"no right":     {func(Sys, string) error { return &os.PathError{Op: "write", Err: sys.EPERM} }, sys.EPERM},
		"nothing done": {func(Sys, string) error { return nil }, errStillAttached},
	} {
		t.Run(name, func(t *testing.T) {
			s, d := fakeKRBD(t, true, row.answer)
			wantDetach(t, s, d, row.want)
		})
	}
}

func TestDetachKRBDMappedAgain(t *testing.T) {
	s, d := fakeKRBD(t, true, removeDevice)
	must(t, os.WriteFile(s.newSysfs().attributePath("rbd0", "diskseq"), []byte("6\n"), 0o600))
	wantDetach(t, s, d, ErrChanged)
	if !pathExists(s.newSysfs().imagePath("0")) {
		t.Error("another image was unmapped")
	}
}

// TestDetachKRBDWhoseClusterIsGone: the kernel never comes back from the write.
func TestDetachKRBDWhoseClusterIsGone(t *testing.T) {
	answers := make(chan struct{})
	sys, device := fakeKRBD(t, true, func(Sys, string) error { <-answers; return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := sys.Detach(ctx, device); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("%v, want no answer", err)
	}
	if _, err := sys.Busy(device); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("asked meanwhile: %v, want no answer", err)
	}
	close(answers)
	kerneltest.Await(t, "answer", func() bool { _, err := sys.Busy(device); return err == nil })
}

// TestDetachWritesToAFileThatIsThere: the file of a driver is never made.
func TestDetachWritesToAFileThatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "remove")
	if err := (Sys{}).writeOrder(t.Context(), path, "0"); !errors.Is(err, ErrNotFound) || pathExists(path) {
		t.Errorf("%v, made %v", err, pathExists(path))
	}
}
