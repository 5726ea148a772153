// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"golang.org/x/sys/unix"
)

// WhileAttached runs fn with a tree that CloneTree made attached in a copy of the thread's mount namespace, which no
// other process sees. Some calls refuse a tree that is attached nowhere. Afterwards tree is a copy of itself at the end
// of fn, attached nowhere again. Only inside OnThread (5.2).
func WhileAttached(tree *FD, fn func() error) error {
	st, err := tree.Stat(StatType)
	if err != nil {
		return err
	}
	return InMountsCopy(func() error {
		if err := attachToScratch(tree, st.IsDir()); err != nil {
			return err
		}
		if err := fn(); err != nil {
			return err
		}
		again, err := CloneTree(tree)
		if err != nil {
			return err
		}
		tree.number, again.number = again.number, tree.number
		return again.Close()
	})
}

// attachToScratch attaches a tree to an empty tmpfs on the root of the thread's
// namespace, which is a copy.
func attachToScratch(tree *FD, dir bool) error {
	if err := SetPropagation("/", Private, false); err != nil {
		return err
	}
	scratch, err := scratchTmpfs()
	if err != nil {
		return err
	}
	defer scratch.Close()
	if err := AttachAtRoot(scratch); err != nil {
		return err
	}
	return attachAt(tree, scratch.number, scratchName(dir))
}

// remountFlags are the attributes of a mount as mount(2) knows them.
var remountFlags = map[MountAttr]uintptr{
	AttrReadOnly: unix.MS_RDONLY, AttrNoSUID: unix.MS_NOSUID, AttrNoDev: unix.MS_NODEV, AttrNoExec: unix.MS_NOEXEC,
	AttrNoATime: unix.MS_NOATIME, AttrStrictATime: unix.MS_STRICTATIME, AttrNoDirATime: unix.MS_NODIRATIME,
	AttrNoSymfollow: unix.MS_NOSYMFOLLOW,
}

// SetMountAttr sets the attributes of an attached mount, whose root f is, on every kernel. Only inside OnThread.
func SetMountAttr(f *FD, attr MountAttr) error {
	var flags uintptr
	if attr&(AttrNoATime|AttrStrictATime) == 0 {
		flags = unix.MS_RELATIME
	}
	for a, flag := range remountFlags {
		if attr.Has(a) {
			flags |= flag
		}
	}
	return mountFD(f, flags|unix.MS_REMOUNT|unix.MS_BIND)
}

// mountFD is mount(2) with flags that change the mount whose root f is.
func mountFD(f *FD, flags uintptr) error {
	return inDirectory(ownProc, func() error { return unix.Mount("", f.procPath(), "", flags, "") })
}
