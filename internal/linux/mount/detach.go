// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"path"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// errNoAside: the mount cannot be removed from aside.
var errNoAside = errors.New("no way from aside")

// detachAside removes a mount that is in use, and only that one, whatever others
// mount on it meanwhile. An unmount by a name takes what is on top. One that
// spreads from a peer of the parent takes what is mounted on the parent, and
// leaves what is mounted on that to the parent. So the tree, which is the
// parent, is made to share, the namespace is copied, and the copy of the mount is
// unmounted there, where no other process comes.
func (r *replaceOp) detachAside() error {
	if r.attachesByPropagation() {
		return errNoAside // the tree is elsewhere, and what it has spread to is not to be opened
	}
	home, err := mountns.Self()
	if err != nil || home.ID == 0 || r.mountSource != (kernelSource{}) {
		return errNoAside
	}
	if r.attachedState.Shared == 0 {
		if err := r.logCall("mount_setattr", "MS_SHARED of the tree", sys.SetMountPropagation(r.tree, Shared)); err != nil {
			return errNoAside
		}
		defer func() {
			_ = r.logCall("mount_setattr", "MS_PRIVATE of the tree", sys.SetMountPropagation(r.tree, Private))
		}()
	}
	err = sys.InMountsCopy(func() error { return r.detachCopy(kernelSource{namespace: home.ID}) })
	standing, standingErr := r.mountSource.exists(r.id)
	switch {
	case standingErr != nil:
		return r.fail("verify", standingErr)
	case !standing:
		return nil
	case err == nil:
		return r.fail("unmount", ErrBusy) // something was mounted below its root
	case errors.Is(err, ErrBusy):
		return err
	}
	return errNoAside // the namespace is not to be copied, or the copy is locked
}

// detachCopy unmounts the copy of the mount, in the copy of the namespace home.
func (r *replaceOp) detachCopy(home kernelSource) error {
	dir, err := mountns.Lookup(0, path.Dir(r.id.Point))
	if err != nil {
		return errNoAside
	}
	defer dir.Close()
	copied, err := mountns.LookupIn(dir, r.id.Point)
	if err != nil {
		return errNoAside
	}
	defer copied.Close()
	// Mounts on the mount from now on do not propagate to the copy.
	if err := sys.SetMountPropagation(copied, Private); err != nil {
		return errNoAside
	}
	// As long as the mount is there, its copy is. Were it gone, this would be the
	// copy of another.
	bare, err := home.hasNoChildren(r.id)
	if err != nil {
		return errNoAside
	}
	if !bare {
		return r.fail("unmount", ErrBusy)
	}
	if err := r.logCall("umount2", "MNT_DETACH of its copy in a namespace of our own", sys.DetachMount(copied)); err != nil {
		return errNoAside // it is locked, or gone
	}
	return nil
}

// detachTop removes a mount that is in use as long as it is on top.
func (r *replaceOp) detachTop() error {
	fd, _, err := r.reopenMount()
	if err != nil {
		return err
	}
	defer fd.Close()
	var refusal error
	err = sys.DetachMountIf(fd, func() error {
		refusal = r.expectNoChildren()
		return refusal
	})
	if refusal == nil {
		_ = r.logCall("umount2", "MNT_DETACH", err)
	}
	if refusal != nil {
		return refusal
	}
	if err != nil {
		return r.explainRefusal(err)
	}
	return r.verify(ErrOtherUnmounted)
}
