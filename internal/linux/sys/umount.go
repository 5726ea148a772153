// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"golang.org/x/sys/unix"
)

// DetachMount lazily unmounts the mount that f lies on, together with the mounts on and below it. Only inside OnThread.
// The kernel follows the mounts that have come on top of f in the meantime; only an unlinked root, where nothing can be
// mounted, makes this exact. The mount itself stays alive while anything, f included, has it open.
//
// The way leads through the process' own /proc, not the path /proc: in another
// namespace that one may be forged.
func DetachMount(f *FD) error {
	return inDirectory(ownProc, func() error { return unix.Unmount(f.procPath(), unix.MNT_DETACH) })
}

// DetachMountIf is DetachMount if check returns no error. It calls check as late as it can, and hands on its error.
func DetachMountIf(f *FD, check func() error) error {
	return inDirectory(ownProc, func() error {
		if err := check(); err != nil {
			return err
		}
		return unix.Unmount(f.procPath(), unix.MNT_DETACH)
	})
}

// ExpireMount is umount2(MNT_EXPIRE) of the topmost mount at name in dir. Only
// inside OnThread. A mount that is used, or has mounts on it, gives EBUSY. The
// first call marks the mount and gives EAGAIN; any use of the mount, a mere
// look at it included, takes the mark away; a call that finds the mark
// unmounts. A link at name gives EINVAL.
func ExpireMount(dir *FD, name string) error {
	return inDirectory(dir, func() error {
		return unix.Unmount(name, unix.MNT_EXPIRE|unix.UMOUNT_NOFOLLOW)
	})
}

// DetachNamed is umount2(MNT_DETACH) of the topmost mount at name in dir. Only
// inside OnThread. It needs no look at the root of the mount, which may give
// ESTALE. A link at name gives EINVAL.
func DetachNamed(dir *FD, name string) error {
	return inDirectory(dir, func() error {
		return unix.Unmount(name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	})
}

// ownProc stands for the process' own /proc as the directory of inDirectory.
var ownProc = &FD{number: -1}

// inDirectory runs call with dir as the thread's working directory, and goes back.
func inDirectory(dir *FD, call func() error) (err error) {
	if !InPrivateThread() {
		return unix.EINVAL
	}
	if dir == ownProc {
		if dir, err = Procfs(); err != nil {
			return err
		}
	}
	back, err := openat(unix.AT_FDCWD, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	defer back.Close()
	if err := unix.Fchdir(dir.number); err != nil {
		return err
	}
	callErr := call()
	if err := unix.Fchdir(back.number); callErr == nil && err != nil {
		return err
	}
	return callErr
}
