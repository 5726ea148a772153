// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"strings"

	"golang.org/x/sys/unix"
)

// OpenEntry opens the entry called name of the directory dir with O_PATH. It leaves neither the directory nor its
// mount: EXDEV if something is mounted on the entry, which gets no request; ELOOP if it is a symbolic link, which is
// not followed. The caller closes it.
func OpenEntry(dir *FD, name string) (*FD, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return Walk{Root: dir, NoLinks: true, Beneath: true, OneMount: true}.Open(name)
}

// ListDir returns the names in the directory dir, which may have been opened with
// O_PATH, in no order, without "." and "..". It stops soon after most names,
// and then more is true. It reads the directory, and waits for its file system.
func ListDir(dir *FD, most int) (names []string, more bool, err error) {
	fd, err := openat(dir.number, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return nil, false, err
	}
	defer fd.Close()
	var buf [16 << 10]byte
	for len(names) <= most {
		n, err := retryInterrupted(func() (int, error) { return unix.ReadDirent(fd.number, buf[:]) })
		if err != nil || n == 0 {
			return names, false, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	return names, true, nil
}

// ReadHead returns the first bytes, at most most, of the regular file that f,
// opened with O_PATH, lies on. It waits for its file system. EINVAL: it is
// something else, which opening might do anything to.
func ReadHead(f *FD, most int) ([]byte, error) {
	st, err := f.Stat(StatType)
	if err != nil {
		return nil, err
	}
	if !st.IsRegular() {
		return nil, unix.EINVAL
	}
	fd, err := f.Reopen()
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	buf := make([]byte, most)
	n, err := fd.Read(buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}

// RemoveDirAt removes the empty directory called name from dir: unlinkat(2) with AT_REMOVEDIR, which never removes a
// directory with entries (ENOTEMPTY), nor a file or symbolic link (ENOTDIR).
//
// EBUSY: something is mounted on it in the caller's mount namespace. In other
// namespaces the kernel detaches the mounts on it (fs/namei.c, vfs_rmdir; 3.18): a
// caller that does not want that has to look before.
func RemoveDirAt(dir *FD, name string) error { return unlinkAt(dir, name, unix.AT_REMOVEDIR) }

// RemoveFileAt removes the name of a file from dir, but of no directory (EISDIR): unlinkat(2). It removes a symbolic
// link itself, and not the target. Mounts on it are treated as in RemoveDirAt.
func RemoveFileAt(dir *FD, name string) error { return unlinkAt(dir, name, 0) }

func unlinkAt(dir *FD, name string, flags int) error {
	if err := checkName(name); err != nil {
		return err
	}
	return retryInterruptedError(func() error { return unix.Unlinkat(dir.number, name, flags) })
}

// checkName refuses a name that is not one component of a path.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return unix.EINVAL
	}
	return nil
}
