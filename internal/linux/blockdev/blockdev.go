// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package blockdev knows the block devices of the machine as the kernel reports them: the file systems on a device, the
// parts of the kernel that use it, whether it is busy, and how to detach it by its own means.
//
// It does not use mounts or processes. It never forces a device: a busy one stays
// as it is. It believes the kernel's numbers, never the name of a node or a text
// that another process may have written. Nothing in it but Detach, which has a
// context, waits longer than a few seconds for a device that does not answer.
//
// It rests on the kernel's Documentation/ABI (sysfs-block, sysfs-bus-rbd,
// sysfs-block-zram, sysfs-fs-ext4, procfs-diskstats), open(2) for O_EXCL on
// block devices, loop(4), proc_swaps(5).
package blockdev

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/linux/bounded"
	"kubediag.org/kubediag/internal/linux/sys"
)

var (
	// ErrNotFound: there is no such device, or no longer.
	ErrNotFound = errors.New("no such block device")
	// ErrNotBlock: the path does not lead to a block device.
	ErrNotBlock = errors.New("not a block device")
	// ErrBusy: the device is in use; nothing has been changed.
	ErrBusy = errors.New("device is busy")
	// ErrNoMeans: devices of this kind are detached by their own driver only.
	ErrNoMeans = errors.New("no means to detach such a device")
	// ErrNotAttached: the device is there but has nothing behind it, as after
	// Detach.
	ErrNotAttached = errors.New("device has nothing attached")
	// ErrChanged: the device has become another one since it was resolved.
	ErrChanged = errors.New("device has been replaced")
	// errStillAttached: the kernel reported success, yet the device is there.
	errStillAttached = errors.New("still attached after detaching")
	// ErrNoAnswer: the device, or the file system that leads to it, did not
	// answer in time.
	ErrNoAnswer = bounded.ErrNoAnswer
	// ErrNotCounted: the kernel does not count reads and writes.
	ErrNotCounted = errors.New("reads and writes are not counted")
)

// Number is the kernel's number of a block device, or of a file system.
type Number struct{ Major, Minor uint32 }

// The kernel's bounds: a number has 12 and 20 bits.
const (
	maxMajor = 1<<12 - 1
	maxMinor = 1<<20 - 1
)

// String is the number as sysfs and mountinfo show it, "7:1".
func (n Number) String() string {
	return strconv.FormatUint(uint64(n.Major), 10) + ":" + strconv.FormatUint(uint64(n.Minor), 10)
}

// parseNumber reads "major:minor", both decimal, at most 4095 and 1048575.
func parseNumber(text string) (Number, error) {
	major, minor, ok := strings.Cut(text, ":")
	if !ok || !isDecimal(major) || !isDecimal(minor) {
		return Number{}, fmt.Errorf("parse device number %q: want major:minor", text)
	}
	a, err := strconv.ParseUint(major, 10, 32)
	if err != nil || a > maxMajor {
		return Number{}, fmt.Errorf("parse device number %q: major above %d", text, maxMajor)
	}
	b, err := strconv.ParseUint(minor, 10, 32)
	if err != nil || b > maxMinor {
		return Number{}, fmt.Errorf("parse device number %q: minor above %d", text, maxMinor)
	}
	return Number{Major: uint32(a), Minor: uint32(b)}, nil
}

// isDecimal reports whether text is a decimal number without a sign.
func isDecimal(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

// Kind is the driver of a block device, as far as it matters for detaching it. A partition is of its disk's kind.
type Kind string

// The kinds.
const (
	Loop  Kind = "loop"  // a file as a device; LOOP_CLR_FD
	Zram  Kind = "zram"  // compressed memory; reset
	KRBD  Kind = "krbd"  // an image of Ceph's, mapped by the kernel; /sys/bus/rbd
	DM    Kind = "dm"    // device mapper: LVM, LUKS, multipath
	MD    Kind = "md"    // software RAID
	Other Kind = "other" // anything else: disks, NVMe, NBD, ...
	// Anonymous is no device: the number of a file system in memory, of a daemon, of a server or made of other file systems.
	// Its name is that number.
	Anonymous Kind = "anonymous"
)

// Device is a block device as it was when it was read. It is a plain value and keeps nothing open.
type Device struct {
	Number
	Name   string // the kernel's, "rbd3"; "cciss!c0d0" has its node at /dev/cciss/c0d0
	Kind   Kind
	Parent string // name of the disk that it is a partition of; empty for a disk
	// Sequence is the kernel's number for the present backing of the disk, never used again while the machine runs; 0
	// on kernels before 5.15.
	Sequence uint64
	// Image stands for Sequence if that is 0 and the driver identifies the backing of the disk: krbd the image and the
	// mapping, the loop driver the file. Else it is empty.
	Image string
}

// Known reports whether the device can be distinguished from a successor with the same name.
func (d Device) Known() bool { return d.Sequence != 0 || d.Image != "" }

// Node is the path of the device's node, "/dev/rbd3". It need not be there. A number that is no device's stands for itself.
func (d Device) Node() string {
	if d.Kind == Anonymous {
		return d.Name
	}
	return "/dev/" + strings.ReplaceAll(d.Name, "!", "/")
}

// Sys reads the kernel's files about devices.
type Sys struct {
	// Root is the directory of sys, proc and dev; "" is "/". Devices themselves are opened by their number, for every
	// Root.
	Root string
	// Write writes text to a file of sysfs in one call; nil is the real thing.
	// Tests put a driver in its place that this machine does not have.
	Write func(path, text string) error
	// Mapper describes the parts of a mapped device; nil is the device mapper, if Root is empty.
	Mapper func(Number) ([]sys.MapperTarget, error)
}

func (s Sys) newSysfs() sysfs { return sysfs{s.Root} }
