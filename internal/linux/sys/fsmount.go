// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"golang.org/x/sys/unix"
)

// MountDetached makes a mount of a file system that needs neither a source nor
// options, attached nowhere (5.2, ENOSYS before), and gives its root. It is in no
// mount namespace and goes with the descriptor. ENODEV: the kernel does not know
// the type.
func MountDetached(fsType string) (*FD, error) {
	return mountDetached(fsType, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
}

// mountDetached is MountDetached with these attributes of the mount, and with options of
// the file system, each a name and its value.
func mountDetached(fsType string, attr int, options ...[2]string) (*FD, error) {
	n, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	context := newFD(n)
	defer context.Close()
	for _, option := range options {
		if err := unix.FsconfigSetString(context.number, option[0], option[1]); err != nil {
			return nil, err
		}
	}
	if err := unix.FsconfigCreate(context.number); err != nil {
		return nil, err
	}
	if n, err = unix.Fsmount(context.number, unix.FSMOUNT_CLOEXEC, attr); err != nil {
		return nil, err
	}
	return newFD(n), nil
}

// fuseControlMagic is FUSE_CTL_SUPER_MAGIC; x/sys does not name it.
const fuseControlMagic = 0x65735543

// OpenFUSEControl opens the control file system of FUSE with O_PATH where it is
// mounted at path. ENODEV: another one is there.
func OpenFUSEControl(path string) (*FD, error) {
	fd, err := Lookup(path)
	if err != nil {
		return nil, err
	}
	if err := fd.expectMagic(fuseControlMagic); err != nil {
		fd.Close()
		return nil, err
	}
	return fd, nil
}

// ReadBelow reads a file below dir with one read(2), at most len(buf) bytes, and returns that part of buf. No link is
// followed. Only for file systems of the kernel's own: it waits for others.
func ReadBelow(dir *FD, name string, buf []byte) ([]byte, error) {
	f, err := openat(dir.number, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return f.readHead(buf)
}

// WriteBelow writes text in one write(2) to a file that there is below dir. No
// link is followed.
func WriteBelow(dir *FD, name, text string) error {
	f, err := openat(dir.number, name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = retryInterrupted(func() (int, error) { return unix.Write(f.number, []byte(text)) })
	return err
}
