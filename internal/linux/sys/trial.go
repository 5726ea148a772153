// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"golang.org/x/sys/unix"
)

// hasDetachedTarget is whether a tree can be attached where nothing is mounted
// anywhere.
var hasDetachedTarget = &Feature{
	Name: "move_mount onto a detached mount", Kernel: "6.15", probe: probeDetachedTarget,
	Without: "a bind is tried out in a copy of the mount namespace that is emptied first",
}

func probeDetachedTarget() error {
	tree, err := mountDetached("tmpfs", 0)
	if err != nil {
		return unsupportedError(err, ENOSYS)
	}
	defer tree.Close()
	return unsupportedError(attachDetached(tree, true), EINVAL)
}

// Scratch is where TryAttach attaches trees.
type Scratch struct {
	mountNamespace NamespaceFD // with nothing but an empty tmpfs; empty: not needed
}

// NewScratch makes a place for TryAttach. It is empty if the kernel can attach to a file system that is mounted nowhere
// (6.15), else a mount namespace that holds nothing but an empty tmpfs. Such a namespace begins as a copy of the
// caller's, until everything in it is unmounted: some milliseconds for thousands of mounts. It lasts as long as the
// process.
func NewScratch() (*Scratch, error) {
	if hasDetachedTarget.Probe() == nil {
		return &Scratch{}, nil
	}
	return newScratchSpace()
}

// TryAttach attaches a tree that CloneTree made, whose root is a directory or not,
// where no other process sees it, and takes it away again. ENOENT: the tree's root,
// or a directory on the way to it, has been unlinked, or is not to be found any
// more; no container could have it mounted either. It asks no file system. Only
// inside OnThread, which it leaves in the process' own namespace.
func (s *Scratch) TryAttach(tree *FD, dir bool) error {
	if s.mountNamespace == (NamespaceFD{}) {
		return attachDetached(tree, dir)
	}
	home, err := OpenNamespace("self/ns/mnt") // that of the main thread, which never leaves
	if err != nil {
		return err
	}
	defer home.Close()
	if err := s.mountNamespace.EnterMountNamespace(); err != nil {
		return err
	}
	// A copy of the namespace goes, with everything in it, when the thread leaves.
	if err = UnshareMounts(); err == nil {
		err = attachAt(tree, unix.AT_FDCWD, "/"+scratchName(dir))
	}
	if back := home.EnterMountNamespace(); err == nil {
		err = back
	}
	return err
}

func attachDetached(tree *FD, dir bool) error {
	root, err := scratchTmpfs()
	if err != nil {
		return err
	}
	defer root.Close() // everything on it goes with it
	return attachAt(tree, root.number, scratchName(dir))
}

func scratchName(dir bool) string {
	if dir {
		return "dir"
	}
	return "file"
}

// scratchTmpfs is a new file system, mounted nowhere, with a directory and a
// file that something can be attached to.
func scratchTmpfs() (*FD, error) {
	root, err := mountDetached("tmpfs", 0)
	if err != nil {
		return nil, err
	}
	if err = unix.Mkdirat(root.number, scratchName(true), 0o700); err == nil {
		err = unix.Mknodat(root.number, scratchName(false), unix.S_IFREG|0o600, 0)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

func newScratchSpace() (*Scratch, error) {
	s := &Scratch{}
	err := OnThread(func() error {
		if err := UnshareMounts(); err != nil {
			return err
		}
		// Or else unmounting here would unmount elsewhere.
		if err := SetPropagation("/", Private, true); err != nil {
			return err
		}
		if err := replaceRoot(); err != nil {
			return err
		}
		var err error
		s.mountNamespace, err = OpenNamespace(ThreadProc("ns/mnt"))
		return err
	})
	return s, err
}

// replaceRoot empties the thread's namespace but for a new tmpfs.
func replaceRoot() error {
	root, err := scratchTmpfs()
	if err != nil {
		return err
	}
	defer root.Close()
	if err := AttachAtRoot(root); err != nil {
		return err
	}
	if err := unix.Fchdir(root.number); err != nil {
		return err
	}
	// The old root comes to lie on the new one, and "." is the topmost.
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	return unix.Unmount(".", unix.MNT_DETACH)
}
