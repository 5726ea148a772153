// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package blockdev

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/bounded"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/debian"
)

func TestResolveByEveryName(t *testing.T) {
	device := newLoop(t, newImage(t, 1))
	dir := t.TempDir()
	link, chain, own := filepath.Join(dir, "link"), filepath.Join(dir, "chain"), filepath.Join(dir, "own")
	must(t, os.Symlink(device.Node(), link))
	must(t, os.Symlink("./../"+filepath.Base(dir)+"/link", chain))
	runProgram(t, "mknod", own, "b", "7", strings.TrimPrefix(device.Number.String(), "7:"))
	for _, spec := range []string{device.Name, device.Node(), device.Number.String(), link, chain, own, "/dev//./" + device.Name} {
		if got, err := (Sys{}).Resolve(spec); err != nil || got != device {
			t.Errorf("resolve %q: %+v, %v, want %+v", spec, got, err, device)
		}
	}
	runProgram(t, "mknod", filepath.Join(dir, "nothing"), "b", "4000", "1000000")
	for spec, want := range map[string]error{
		"4000:1000000": ErrNotFound, filepath.Join(dir, "nothing"): ErrNotFound,
		"/dev/null": ErrNotBlock, dir: ErrNotBlock, filepath.Join(dir, "none"): ErrNotFound,
	} {
		if _, err := (Sys{}).Resolve(spec); !errors.Is(err, want) {
			t.Errorf("resolve %q: %v, want %v", spec, err, want)
		}
	}
	if all, err := (Sys{}).All(); err != nil || !slices.Contains(all, device) {
		t.Errorf("all devices: %+v, %v, want %+v among them", all, err, device)
	}
}

// TestResolveWhereNothingAnswers: a user who names a path may name a hung one.
func TestResolveWhereNothingAnswers(t *testing.T) {
	dir := t.TempDir()
	kerneltest.FUSE(t, dir)
	start := time.Now()
	_, err := (Sys{}).Resolve(filepath.Join(dir, "hang"))
	if took := time.Since(start); !errors.Is(err, ErrNoAnswer) || took > 30*time.Second {
		t.Errorf("%v after %v, want no answer", err, took)
	}
}

func TestBusyWithAFileSystem(t *testing.T) {
	device := formatted(t)
	wantBusy(t, Sys{}, device, false)
	point := mountDevice(t, "ext4", device.Node())
	holder := kerneltest.Start(t, "hold")
	must(t, systest.UnmountPath(point, false))
	wantBusy(t, Sys{}, device, true)
	want := []FileSystem{{Type: "ext4", Number: device.Number, Evidence: "/sys/fs/ext4/" + device.Name}}
	found, err := Sys{}.FileSystems(device)
	if diff := cmp.Diff(want, found); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	holder.End()
	kerneltest.Await(t, "superblock gone", func() bool {
		found, err := Sys{}.FileSystems(device)
		return err == nil && len(found) == 0
	})
	wantBusy(t, Sys{}, device, false)
}

// TestBusyIsNotItself: many who ask at once do not take each other for holders. On a slow machine they may wait in vain.
func TestBusyIsNotItself(t *testing.T) {
	d := newLoop(t, newImage(t, 1))
	asked := make(chan int)
	for range 8 {
		go func() {
			free := 0
			for range 50 {
				switch busy, err := (Sys{}).Busy(d); {
				case busy, err != nil && !errors.Is(err, bounded.ErrNoAnswer):
					t.Errorf("a free device is busy: %v, %v", busy, err)
				case err == nil:
					free++
				}
			}
			asked <- free
		}()
	}
	free := 0
	for range 8 {
		free += <-asked
	}
	if free == 0 {
		t.Error("the device was never found free")
	}
}

// TestBusyByNode covers machines where no node can be made.
func TestBusyByNode(t *testing.T) {
	device := formatted(t)
	fd, err := Sys{}.openNode(device, true)
	must(t, err)
	if fd2, err := (Sys{}).openNode(device, true); !errors.Is(err, sys.EBUSY) {
		fd2.Close()
		t.Errorf("claimed twice: %v", err)
	}
	fd.Close()
	forged := device
	forged.Minor++
	if fd, err := (Sys{}).openNode(forged, false); !errors.Is(err, ErrNotFound) {
		fd.Close()
		t.Errorf("node of another device: %v", err)
	}
}

// partitioned is a loop device with one partition, and that partition.
func partitioned(t *testing.T) (disk, partition Device) {
	t.Helper()
	disk = newLoop(t, newImage(t, 32), "--partscan")
	runProgram(t, "addpart", disk.Node(), "1", "2048", "32768") // sectors; a kernel need not know tables of partitions
	partition = findDevice(t, Sys{}, disk.Name+"p1")
	runProgram(t, "mke2fs", "-q", "-t", "ext4", partition.Node())
	return disk, partition
}

func TestBusyDiskAndPartition(t *testing.T) {
	disk, partition := partitioned(t)
	if partition.Parent != disk.Name || partition.Kind != Loop || partition.Sequence != disk.Sequence {
		t.Errorf("partition %+v of %+v", partition, disk)
	}
	wantDetach(t, Sys{}, partition, ErrNoMeans)
	point := mountDevice(t, "ext4", partition.Node())
	want := []FileSystem{{Type: "ext4", Number: partition.Number, Evidence: "/sys/fs/ext4/" + partition.Name}}
	for _, d := range []Device{disk, partition} {
		wantBusy(t, Sys{}, d, true)
		found, err := Sys{}.FileSystems(d)
		if diff := cmp.Diff(want, found); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", d.Name, err, diff)
		}
	}
	wantDetach(t, Sys{}, disk, ErrBusy)
	wantBound(t, disk, false)
	must(t, systest.UnmountPath(point, false))
	wantBusy(t, Sys{}, disk, false)

	claim, err := sys.OpenExclusive(disk.Node())
	must(t, err)
	wantBusy(t, Sys{}, partition, true)
	claim.Close()
	wantBusy(t, Sys{}, partition, false)
	detachFree(t, Sys{}, disk)
	wantBusyError(t, partition, ErrNotFound)
}

func wantBusyError(t *testing.T, d Device, want error) {
	t.Helper()
	if _, err := (Sys{}).Busy(d); !errors.Is(err, want) {
		t.Errorf("busy of %s: %v, want %v", d.Name, err, want)
	}
}

func TestBusyWithAnExternalJournal(t *testing.T) {
	journal, data := newLoop(t, newImage(t, 16)), newLoop(t, newImage(t, 32))
	runProgram(t, "mke2fs", "-q", "-O", "journal_dev", "-b", "4096", journal.Node())
	runProgram(t, "mke2fs", "-q", "-t", "ext4", "-b", "4096", "-J", "device="+journal.Node(), data.Node())
	if found, err := (Sys{}).FileSystems(journal); err != nil || found != nil {
		t.Errorf("before it is used: %+v, %v", found, err)
	}
	mountDevice(t, "ext4", data.Node())
	wantBusy(t, Sys{}, journal, true)
	want := []FileSystem{{
		Type: "ext4", Number: data.Number, Journal: true, Evidence: "/sys/fs/ext4/" + data.Name + "/journal_task",
	}}
	found, err := Sys{}.FileSystems(journal)
	if diff := cmp.Diff(want, found); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	wantDetach(t, Sys{}, journal, ErrBusy)
	wantBound(t, journal, false)
}

// enableSwap makes a swap area of a device or file and uses it until the test ends.
func enableSwap(t *testing.T, path string) {
	t.Helper()
	runProgram(t, "mkswap", path)
	runProgram(t, "swapon", path)
	t.Cleanup(func() { runProgram(t, "swapoff", path) })
}

func TestBusyWithSwap(t *testing.T) {
	device := newLoop(t, newImage(t, 16))
	enableSwap(t, device.Node())
	wantBusy(t, Sys{}, device, true)
	want := []User{{Kind: Swap, Device: device, Path: device.Node(), Evidence: "/proc/swaps"}}
	users, err := Sys{}.Users(device)
	if diff := cmp.Diff(want, users); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	wantDetach(t, Sys{}, device, ErrBusy)
	wantBound(t, device, false)
}

func TestBusyWithASwapFile(t *testing.T) {
	d := formatted(t)
	file := filepath.Join(mountDevice(t, "ext4", d.Node()), "a swap file")
	must(t, os.WriteFile(file, make([]byte, 4<<20), 0o600))
	enableSwap(t, file)
	want := []User{{Kind: SwapFile, Device: d, Path: file, Evidence: "/proc/swaps"}}
	users, err := Sys{}.Users(d)
	if diff := cmp.Diff(want, users); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestBusyWithABtrfsOfTwoDevices(t *testing.T) {
	must(t, debian.Install(t.Context(), "mkfs.btrfs"))
	a, b := newLoop(t, newImage(t, 128)), newLoop(t, newImage(t, 128))
	runProgram(t, "mkfs.btrfs", "-q", a.Node(), b.Node())
	runProgram(t, "btrfs", "device", "scan", a.Node(), b.Node())
	t.Cleanup(func() { runProgram(t, "btrfs", "device", "scan", "--forget", a.Node()) })
	point := mountDevice(t, "btrfs", a.Node())
	members := []string{a.Name, b.Name}
	slices.Sort(members)
	for _, d := range []Device{a, b} {
		wantBusy(t, Sys{}, d, true)
		found, err := Sys{}.FileSystems(d)
		if err != nil || len(found) != 1 || found[0].Type != "btrfs" || !cmp.Equal(found[0].Members, members) {
			t.Errorf("%s: %+v, %v, want a btrfs of %q", d.Name, found, err, members)
		}
		wantDetach(t, Sys{}, d, ErrBusy)
	}
	must(t, systest.UnmountPath(point, false))
	wantBusy(t, Sys{}, b, false)
}

func TestStatCounts(t *testing.T) {
	device := newLoop(t, newImage(t, 4))
	before, err := Sys{}.Stat(device)
	must(t, err)
	wantBusy(t, Sys{}, device, false)
	if again, err := (Sys{}).Stat(device); err != nil || again != before {
		t.Errorf("the truth test itself counts: %+v, then %+v, %v", before, again, err)
	}
	runProgram(t, "dd", "if="+device.Node(), "of=/dev/null", "iflag=direct", "bs=4096", "count=3")
	after, err := Sys{}.Stat(device)
	if err != nil || after.Reads-before.Reads != 3 || after.Writes != before.Writes {
		t.Errorf("%+v, then %+v, %v, want 3 reads more", before, after, err)
	}
}

func TestDetachNothing(t *testing.T) {
	d := Device{Number: Number{4000, 1000000}, Name: "rbd4000", Kind: KRBD}
	wantDetach(t, Sys{}, d, ErrNotFound)
	wantBusyError(t, d, ErrNotFound)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (Sys{}).Detach(ctx, d); !errors.Is(err, context.Canceled) {
		t.Errorf("detach after the end: %v", err)
	}
}
