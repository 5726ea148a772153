// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"
)

// StatPath returns the kernel's cached facts about the file at path. A link at its end is not followed. The lookup of
// the path may wait for the file systems that it leads over.
func StatPath(path string, mask uint32) (Stat, error) {
	return statx(unix.AT_FDCWD, path, statxNoSync|unix.AT_SYMLINK_NOFOLLOW, mask)
}

// OpenExclusive opens the block device whose node is at path for reading, and
// claims it. EBUSY: it, a partition of it or its disk is claimed already, by
// a mounted file system, swap, or another driver. An open without O_EXCL
// claims nothing and is not noticed. While the descriptor is open, nothing
// else can mount the device. ENOTBLK: not a block device. A link at the end
// of path gives ELOOP.
func OpenExclusive(path string) (*FD, error) { return openNodeAt(unix.AT_FDCWD, path, true) }

// OpenShared is OpenExclusive without the claim: it succeeds on a busy device.
func OpenShared(path string) (*FD, error) { return openNodeAt(unix.AT_FDCWD, path, false) }

// OpenBlock opens the block device of that number for reading, and claims it as OpenExclusive does where exclusive is
// set. It needs no node below /dev, which in a container shows the devices at the start of the container: it makes a
// node on a file system that has no path (5.2, ENOSYS before). EPERM: this process may not make nodes. ENXIO or ENODEV:
// there is no such device.
func OpenBlock(major, minor uint32, exclusive bool) (*FD, error) {
	return openNumber(unix.S_IFBLK, major, minor, func(dir *FD, name string) (*FD, error) { return openNodeAt(dir.number, name, exclusive) })
}

// openNumber has a node made on a file system that has no path, and opens it.
func openNumber(kind, major, minor uint32, open func(dir *FD, name string) (*FD, error)) (*FD, error) {
	dir, err := mountDetached("tmpfs", 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	dev := int(unix.Mkdev(major, minor))
	err = retryInterruptedError(func() error { return unix.Mknodat(dir.number, "device", kind|0o400, dev) })
	if err != nil {
		return nil, err
	}
	return open(dir, "device")
}

// openNodeAt opens the block device whose node is at path. It looks at the node
// first, which runs no driver, and does not wait for a medium.
func openNodeAt(dir int, path string, exclusive bool) (*FD, error) {
	node, err := openat(dir, path, pathFlags)
	if err != nil {
		return nil, err
	}
	defer node.Close()
	st, err := node.Stat(StatType)
	if err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil, unix.ELOOP
	}
	if !st.IsBlockDevice() {
		return nil, unix.ENOTBLK
	}
	flags := unix.O_RDONLY | unix.O_NONBLOCK
	if exclusive {
		flags |= unix.O_EXCL
	}
	return openProc(node.procPath(), flags)
}

// Loop is the backing of a loop device.
type Loop struct {
	Major, Minor uint32 // of the file system that the backing file lies on
	Ino          uint64 // of the backing file
	// RdevMajor and RdevMinor are the backing block device, if it is one.
	RdevMajor, RdevMinor uint32
	Offset, Limit        uint64 // bytes of the backing file; Limit 0 is to its end
	// Autoclear is whether the device is released when it is closed last.
	Autoclear bool
	File      string // the name given when it was bound, cut at 63 bytes: not to be trusted
}

// LoopFD is the descriptor of a loop device that was opened for reading.
type LoopFD struct{ *FD }

// LoopStatus returns the backing of a loop device; ENXIO if it is free. It waits for the file system of the backing
// file.
func (l LoopFD) LoopStatus() (Loop, error) {
	info, err := l.loopInfo()
	if err != nil {
		return Loop{}, err
	}
	name, _, _ := bytes.Cut(info.File_name[:], []byte{0})
	return Loop{
		Major: unix.Major(info.Device), Minor: unix.Minor(info.Device), Ino: info.Inode,
		RdevMajor: unix.Major(info.Rdevice), RdevMinor: unix.Minor(info.Rdevice),
		Offset: info.Offset, Limit: info.Sizelimit,
		Autoclear: info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0, File: string(name),
	}, nil
}

func (l LoopFD) loopInfo() (*unix.LoopInfo64, error) {
	var info *unix.LoopInfo64
	err := retryInterruptedError(func() (err error) {
		info, err = unix.IoctlLoopGetStatus64(l.number)
		return err
	})
	return info, err
}

// LoopClear releases the file that backs a loop device. If no other process
// has the device open, that happens at the latest as l is closed. Else the kernel
// would only mark the device to be released at its last close, and say nothing;
// LoopClear takes that mark off again and returns EBUSY. ENXIO: the device is free
// already.
func (l LoopFD) LoopClear() error {
	before, err := l.loopInfo()
	if err != nil {
		return err
	}
	if err := retryInterruptedError(func() error { return unix.IoctlSetInt(l.number, unix.LOOP_CLR_FD, 0) }); err != nil {
		return err
	}
	// As long as l is open no close is the last one, so that the mark does
	// nothing yet.
	after, err := l.loopInfo()
	if errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err != nil {
		return err
	}
	after.Flags = before.Flags
	if err := retryInterruptedError(func() error { return unix.IoctlLoopSetStatus64(l.number, after) }); err != nil {
		return err
	}
	return unix.EBUSY
}
