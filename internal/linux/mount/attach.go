// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// errNothingToAttach: there is nothing to put in place.
var errNothingToAttach = errors.New("nothing to put in place")

// attachFunc mounts the replacement on the mount that at lies on, or beneath the mount whose root at is. The caller
// closes the tree; it is nil where the kernel knows no trees.
type attachFunc func(at *sys.FD, beneath bool) (tree *sys.FD, err error)

// attachment puts a replacement at the point of a mount.
type attachment struct {
	*mountTarget
	attach attachFunc // nil: there is no replacement
	shares bool       // the replacement shares with copies of the namespace, where propagation puts it beneath
	state  State      // of the replacement, once it is attached
}

// attachAtPoint attaches a tree on the mount that at lies on, or beneath the mount whose root at is.
func (a *attachment) attachAtPoint(tree, at *sys.FD, beneath bool) error {
	if beneath && a.attachesByPropagation() {
		return a.attachByPropagation(tree)
	}
	if beneath {
		return a.logCall("move_mount", "MOVE_MOUNT_BENEATH", sys.Attach(tree, at, true))
	}
	return a.logCall("move_mount", "of the tree", sys.Attach(tree, at, false))
}

// attachBeneath puts the replacement beneath the mount whose root fd is: it shows as soon as the mount goes. The mount
// then has another parent. The kernel does not reuse its number while fd is open, so the number finds it again on
// kernels without unique IDs.
func (a *attachment) attachBeneath(fd *sys.FD) error {
	if a.attach == nil {
		return errNothingToAttach
	}
	tree, err := a.attach(fd, true)
	if err != nil {
		return err
	}
	defer tree.Close()
	if a.state, err = a.mountSource.mountBeneath(a.id); err == nil {
		a.id.Parent = a.state.MountInfoID
	}
	return err
}

// attachAt mounts the replacement at the point of the removed mount, unless another process has mounted something there
// already.
func (a *attachment) attachAt() error {
	if a.attach == nil {
		return errNothingToAttach
	}
	at, err := mountns.LookupIn(a.dir, a.id.Point)
	if err != nil {
		return err
	}
	defer at.Close()
	if _, err := a.mountSource.identify(at, a.id.Point); !errors.Is(err, ErrNotMounted) {
		return ErrChanged
	}
	tree, err := a.attach(at, false)
	if err != nil || tree == nil {
		return err
	}
	defer tree.Close()
	if a.state, err = a.mountSource.identify(tree, a.id.Point); err != nil {
		return err
	}
	if _, err := a.mountSource.mountBeneath(a.state.ID); !errors.Is(err, ErrNotMounted) {
		// Another process was faster, and the tree lies on its mount.
		tree.Close()
		return errors.Join(ErrChanged, a.undoAttach())
	}
	return nil
}

// undoAttach removes the replacement, if no process uses it yet.
func (a *attachment) undoAttach() error {
	return newUnmountOp(mountTarget{id: a.state.ID, calls: a.calls}).unmountExactly()
}

// discard removes the replacement where it lies on a mount with the same content and attributes: an attempt that was
// cut short has left that mount behind.
func (a *attachment) discard() {
	below, err := a.mountSource.mountBeneath(a.state.ID)
	if err == nil && below.Attr == a.state.Attr && sameContent(below.ID, a.state.ID) {
		_ = a.undoAttach() // it stays if it is used already
	}
}

// sameContent reports whether both mounts show the same part of one file system.
func sameContent(a, b ID) bool {
	return a.Root == b.Root && a.Major == b.Major && a.Minor == b.Minor
}
