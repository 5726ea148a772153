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
	d := formatted(t)
	b, err := Sys{}.Backing(d)
	must(t, err)
	st, err := sys.StatPath(b.File, sys.StatIno)
	if err != nil || b.Ino != st.Ino || b.Number != (Number{st.Major, st.Minor}) || b.Device != (Number{}) {
		t.Errorf("backing %+v, %v, want file %+v", b, err, st)
	}
	point := mountAt(t, "ext4", d.Node())
	holder := kerneltest.Start(t, "hold")
	must(t, systest.UnmountPath(point, false))
	wantDetach(t, Sys{}, d, ErrBusy)
	wantBound(t, d, false)
	holder.End()
	detach(t, Sys{}, d)
	wantDetach(t, Sys{}, d, ErrNotAttached)
	if _, err := (Sys{}).Backing(d); !errors.Is(err, ErrNotAttached) {
		t.Errorf("behind it: %v, want nothing", err)
	}
}

// TestDetachLoopThatIsOpen: the kernel would say yes and only mark the device,
// which then goes at an unknown time.
func TestDetachLoopThatIsOpen(t *testing.T) {
	d := formatted(t)
	opener := kerneltest.Start(t, "open", d.Node())
	wantBusy(t, Sys{}, d, false)
	wantDetach(t, Sys{}, d, ErrBusy)
	wantBound(t, d, false)
	opener.End()
	wantBound(t, d, false)
	detach(t, Sys{}, d)
}

// TestDetachLoopKeepsTheMarkOfOthers: what its user asked for stays, as well.
func TestDetachLoopKeepsTheMarkOfOthers(t *testing.T) {
	d := formatted(t)
	point := mountAt(t, "ext4", d.Node())
	run(t, "losetup", "--detach", d.Node())
	wantBound(t, d, true)
	wantDetach(t, Sys{}, d, ErrBusy)
	wantBound(t, d, true)
	must(t, systest.UnmountPath(point, false))
	eventually(t, "released by the kernel", func() bool {
		return errors.Is((Sys{}).Detach(t.Context(), d), ErrNotAttached)
	})
}

func TestDetachLoopThatIsAnother(t *testing.T) {
	d := loop(t, image(t, 1))
	if d.Sequence == 0 {
		t.Skip("kernel lacks diskseq of block devices (5.15)")
	}
	before := d
	before.Sequence--
	wantDetach(t, Sys{}, before, ErrChanged)
	wantBound(t, d, false)
}

func TestDetachZram(t *testing.T) {
	d := zram(t)
	if d.Kind != Zram {
		t.Fatalf("%+v", d)
	}
	point := mountAt(t, "ext4", d.Node())
	holder := kerneltest.Start(t, "hold")
	must(t, systest.UnmountPath(point, false))
	wantBusy(t, Sys{}, d, true)
	wantDetach(t, Sys{}, d, ErrBusy)
	// The kernel's answer to the write itself.
	if err := (detacher{}).order(t.Context(), (sysfs{}).attr(d.Name, "reset"), "1"); !errors.Is(err, ErrBusy) || !errors.Is(err, sys.EBUSY) {
		t.Errorf("reset while it is mounted elsewhere: %v, want EBUSY", err)
	}
	holder.End()
	eventually(t, "free", func() bool { busy, err := Sys{}.Busy(d); return err == nil && !busy })

	opener := kerneltest.Start(t, "open", d.Node())
	wantDetach(t, Sys{}, d, ErrBusy)
	if state, err := (sysfs{}).read(d.Name, "initstate"); err != nil || state != "1" {
		t.Errorf("state %q, %v: a refusal changed it", state, err)
	}
	opener.End()
	detach(t, Sys{}, d)
	if err := (Sys{}).Detach(t.Context(), d); !errors.Is(err, ErrNotAttached) && !errors.Is(err, ErrChanged) {
		t.Errorf("once more: %v, want nothing attached", err)
	}
}

// krbd is a root in which a real loop device is called rbd0, with krbd's files
// as Documentation/ABI/testing/sysfs-bus-rbd has them: this machine has no
// krbd. Its driver answers what is written.
func krbd(t *testing.T, single bool, answer func(s Sys, text string) error) (Sys, Device) {
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
	s := layOut(t, tree)
	s.Write = func(path, text string) error {
		if path != s.files().at("sys/bus/rbd/"+file) || text != "0" {
			t.Errorf("%q written to %q", text, path)
		}
		return answer(s, text)
	}
	return s, find(t, s, "rbd0")
}

// unmap is what the kernel does when it removes the device.
func unmap(s Sys, _ string) error {
	return errors.Join(
		os.RemoveAll(s.files().at("sys/bus/rbd/devices/0")), os.RemoveAll(s.files().at("sys/devices/rbd/0")),
		os.Remove(s.files().at("sys/class/block/rbd0")),
	)
}

func TestDetachKRBD(t *testing.T) {
	for name, single := range map[string]bool{"a major for each": false, "one major": true} {
		t.Run(name, func(t *testing.T) {
			s, d := krbd(t, single, unmap)
			if d.Kind != KRBD {
				t.Fatalf("%+v", d)
			}
			point := mountAt(t, "ext4", "/dev/"+find(t, Sys{}, d.Number.String()).Name)
			holder := kerneltest.Start(t, "hold")
			must(t, systest.UnmountPath(point, false))
			wantDetach(t, s, d, ErrBusy)
			if !exists(s.files().image("0")) {
				t.Fatal("removed while it was mounted elsewhere")
			}
			holder.End()
			eventually(t, "free", func() bool { busy, err := s.Busy(d); return err == nil && !busy })
			detach(t, s, d)
			wantDetach(t, s, d, ErrNotFound)
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
			s, d := krbd(t, true, row.answer)
			wantDetach(t, s, d, row.want)
		})
	}
}

func TestDetachKRBDMappedAnew(t *testing.T) {
	s, d := krbd(t, true, unmap)
	must(t, os.WriteFile(s.files().attr("rbd0", "diskseq"), []byte("6\n"), 0o600))
	wantDetach(t, s, d, ErrChanged)
	if !exists(s.files().image("0")) {
		t.Error("another image was unmapped")
	}
}

// TestDetachKRBDWhoseClusterIsGone: the kernel never comes back from the write.
func TestDetachKRBDWhoseClusterIsGone(t *testing.T) {
	answers := make(chan struct{})
	s, d := krbd(t, true, func(Sys, string) error { <-answers; return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Detach(ctx, d); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("%v, want no answer", err)
	}
	if _, err := s.Busy(d); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("asked meanwhile: %v, want no answer", err)
	}
	close(answers)
	eventually(t, "answer", func() bool { _, err := s.Busy(d); return err == nil })
}

// TestDetachWritesToAFileThatIsThere: the file of a driver is never made.
func TestDetachWritesToAFileThatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "remove")
	if err := (detacher{}).order(t.Context(), path, "0"); !errors.Is(err, ErrNotFound) || exists(path) {
		t.Errorf("%v, made %v", err, exists(path))
	}
}
