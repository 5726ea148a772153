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

// attachFunc mounts what is to be at the point on what at lies on, or beneath the
// mount whose root at is. The caller closes the tree that it gives, which is nil
// where the kernel knows no trees.
type attachFunc func(at *sys.FD, beneath bool) (tree *sys.FD, err error)

// maxSourceTries bounds how often a source is asked for that keeps being replaced.
const maxSourceTries = 3

// attachSource attaches a copy of what source gives.
func (u *unmountOp) attachSource(at *sys.FD, beneath bool) (tree *sys.FD, err error) {
	for range maxSourceTries {
		source := u.source()
		if source == nil {
			return nil, errNothingToAttach
		}
		tree, err = u.attachCopy(source, at, beneath)
		source.Close()
		if !errors.Is(err, sys.ENOENT) {
			return tree, err
		}
	}
	return nil, err
}

func (u *unmountOp) attachCopy(source, at *sys.FD, beneath bool) (*sys.FD, error) {
	tree, err := sys.CloneTree(source)
	if errors.Is(err, sys.ENOSYS) && !beneath {
		return nil, u.logCall("mount", "MS_BIND", sys.BindFD(source, at))
	}
	if err != nil {
		return nil, err
	}
	if err := u.attachAtPoint(tree, at, beneath); err != nil {
		tree.Close()
		return nil, err
	}
	return tree, nil
}

// attachAtPoint attaches a tree on what at lies on, or beneath the mount whose root at is.
func (u *unmountOp) attachAtPoint(tree, at *sys.FD, beneath bool) error {
	if beneath && u.attachesByPropagation() {
		return u.attachByPropagation(tree)
	}
	if beneath {
		return u.logCall("move_mount", "MOVE_MOUNT_BENEATH", sys.Attach(tree, at, true))
	}
	return u.logCall("move_mount", "of the tree", sys.Attach(tree, at, false))
}

// attachBeneath has what is to be there show as soon as the mount whose root fd is goes. The mount then has another
// parent. Its number stays its own as long as fd is open, and so it is found again if it has no other.
func (u *unmountOp) attachBeneath(fd *sys.FD) error {
	if u.attachReplacement == nil {
		return errNothingToAttach
	}
	tree, err := u.attachReplacement(fd, true)
	if err != nil {
		return err
	}
	defer tree.Close()
	if u.attachedState, err = u.mountSource.mountBeneath(u.id); err == nil {
		u.id.Parent = u.attachedState.MountInfoID
	}
	return err
}

// attachAt mounts what is to be there where the mount was, unless another process
// has mounted something there already.
func (u *unmountOp) attachAt() error {
	if u.attachReplacement == nil {
		return errNothingToAttach
	}
	at, err := mountns.LookupIn(u.dir, u.id.Point)
	if err != nil {
		return err
	}
	defer at.Close()
	if _, err := u.mountSource.identify(at, u.id.Point); !errors.Is(err, ErrNotMounted) {
		return ErrChanged
	}
	tree, err := u.attachReplacement(at, false)
	if err != nil || tree == nil {
		return err
	}
	defer tree.Close()
	if u.attachedState, err = u.mountSource.identify(tree, u.id.Point); err != nil {
		return err
	}
	if _, err := u.mountSource.mountBeneath(u.attachedState.ID); !errors.Is(err, ErrNotMounted) {
		// Another process was faster, and the tree lies on its mount.
		tree.Close()
		return errors.Join(ErrChanged, u.undoAttach())
	}
	return nil
}

// undoAttach removes what was put in place, if no process uses it yet.
func (u *unmountOp) undoAttach() error {
	own := unmountOp{id: u.attachedState.ID, calls: u.calls}
	return own.withPointDirectory(own.unmountExactly)
}

// discard takes back what was put in place where it lies on a mount that shows and
// allows the same: an attempt that was cut short has left that behind.
func (u *unmountOp) discard() {
	below, err := u.mountSource.mountBeneath(u.attachedState.ID)
	if err == nil && below.Attr == u.attachedState.Attr && sameContent(below.ID, u.attachedState.ID) {
		_ = u.undoAttach() // it stays if it is used already
	}
}

// sameContent reports whether both mounts show the same part of one file system.
func sameContent(a, b ID) bool {
	return a.Root == b.Root && a.Major == b.Major && a.Minor == b.Minor
}
