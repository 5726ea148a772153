// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"golang.org/x/sys/unix"
)

// moveBeneath is MOVE_MOUNT_BENEATH (6.5); x/sys does not name it.
const moveBeneath = 0x200

// CloneTree makes a copy of the mount that path lies on, with path as its
// root, attached nowhere (5.2). Closing the descriptor dissolves the copy
// unless it was attached. path must be in the calling thread's namespace.
func CloneTree(path *FD) (*FD, error) {
	n, err := unix.OpenTree(path.number, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, err
	}
	return newFD(n), nil
}

// MakeTreePrivate stops a tree from sharing with the mount that it was copied
// from (5.12), and makes it read-only where asked.
func MakeTreePrivate(tree *FD, readOnly bool) error {
	attr := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if readOnly {
		attr.Attr_set = unix.MOUNT_ATTR_RDONLY
	}
	return unix.MountSetattr(tree.number, "", unix.AT_EMPTY_PATH, &attr)
}

// Attach mounts a tree on top of the file of at (5.2), or beneath the mount whose root at is (6.5), so that it shows
// once that mount goes. ENOENT: the tree's root, or at, has been unlinked.
func Attach(tree, at *FD, beneath bool) error {
	flags := unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	if beneath {
		flags |= moveBeneath
	}
	return unix.MoveMount(tree.number, "", at.number, "", flags)
}

// AttachAtRoot attaches a tree on top of the root of the thread's namespace.
func AttachAtRoot(tree *FD) error { return attachAt(tree, unix.AT_FDCWD, "/") }

// attachAt attaches a tree on top of the file at a path that begins in dir.
func attachAt(tree *FD, dir int, path string) error {
	at, err := openat(dir, path, pathFlags)
	if err != nil {
		return err
	}
	defer at.Close()
	return Attach(tree, at, false)
}
