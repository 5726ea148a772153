// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package systest holds the system calls that only tests make, to set up mounts and to take them away. No program
// links it. It checks nothing: callers name mounts that they made themselves.
//
// It rests on mount(2), umount2(2), pivot_root(2), chroot(2), loop(4) and the ioctl that shuts a file system down.
package systest

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// BindTree makes source visible at target, with all that is mounted below it.
func BindTree(source, target string) error {
	return unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, "")
}

// MoveMountTo moves the mount at source to target.
func MoveMountTo(source, target string) error {
	return unix.Mount(source, target, "", unix.MS_MOVE, "")
}

// RemountBindReadOnly makes the mount at target, but not its file system, read-only.
func RemountBindReadOnly(target string) error {
	return unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

// UnmountPath unmounts the topmost mount at target; lazy leaves it alive while it is in use. It may wait for a remote
// file system.
func UnmountPath(target string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	return unix.Unmount(target, flags)
}

// PivotRoot makes the mount at path the root of this process' mount namespace, as runtimes do, and detaches the old root.
func PivotRoot(path string) error {
	if err := os.Chdir(path); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root to %s: %w", path, err)
	}
	// The old root lies on the new one, and is the working directory.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount old root: %w", err)
	}
	return os.Chdir("/")
}

// Chroot makes path the root of the calling thread, or of the whole process outside sys.OnThread.
func Chroot(path string) error { return unix.Chroot(path) }

// shutDown is the number of EXT4_IOC_SHUTDOWN, of XFS_IOC_GOINGDOWN and of F2FS_IOC_SHUTDOWN, and withoutLog has the file
// system write nothing more, not even its log.
const (
	shutDown   = 0x8004587d
	withoutLog = 2
)

// ShutDown has the file system of the directory at path do no more I/O, as the kernel does after an error of the disk.
func ShutDown(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.IoctlSetPointerInt(int(dir.Fd()), shutDown, withoutLog)
}

// RemoveLoop removes a loop device by its number: LOOP_CTL_REMOVE in loop(4). EBUSY: it is attached, or open.
func RemoveLoop(number int) error {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	return unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, number)
}
