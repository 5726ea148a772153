// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// errNoAside: the mount cannot be removed from aside.
var errNoAside = errors.New("no way from aside")

// detachAside removes a mount that is in use, and only this mount, even if others mount on it meanwhile. An unmount by
// name removes the topmost mount. An unmount that spreads from a peer of the parent removes the mount on the parent;
// mounts on that mount move to the parent. So the tree, which is the parent, is made to share, and the namespace is
// copied. The copy of the mount is unmounted there, where no other process comes.
func (r *replaceOp) detachAside() error {
	if r.attachment.state.Shared == 0 {
		if r.attachesByPropagation() {
			return errNoAside // a tree that has spread beneath the mount cannot be opened
		}
		if err := r.logCall("mount_setattr", "MS_SHARED of the tree", sys.SetMountPropagation(r.tree, Shared)); err != nil {
			return errNoAside
		}
		defer func() {
			_ = r.logCall("mount_setattr", "MS_PRIVATE of the tree", sys.SetMountPropagation(r.tree, Private))
		}()
	}
	parent, err := r.mountSource.mountBeneath(r.id)
	if err != nil {
		return r.explainRefusal(err)
	}
	err = sys.BesideMountsCopy(func(home func(func() error) error) error { return r.detachCopy(parent, home) })
	mounted, mountedErr := r.mountSource.exists(r.id)
	switch {
	case mountedErr != nil:
		return r.fail("verify", mountedErr)
	case !mounted:
		return nil
	case err == nil:
		return r.fail("unmount", ErrBusy) // something was mounted below its root
	case errors.Is(err, ErrBusy):
		return err
	}
	return errNoAside // the namespace is not to be copied
}

// detachCopy unmounts the copy of the mount, in a copy of the namespace. It returns
// ErrBusy if the copy is not that of the mount. If nothing spreads from the copy of
// its parent, as in namespaces of other users, it returns errNoAside.
func (r *replaceOp) detachCopy(parent State, home func(func() error) error) error {
	mounts, err := mountns.Table(0)
	if err != nil {
		return errNoAside
	}
	if !slices.ContainsFunc(mounts.Mounts(), func(m mountinfo.Mount) bool { return m.Shared == parent.Shared }) {
		return errNoAside
	}
	dir, err := mountns.Lookup(0, path.Dir(r.id.Point))
	if err != nil {
		return r.fail("unmount", fmt.Errorf("%w: %w", ErrBusy, err))
	}
	defer dir.Close()
	copied, err := mountns.LookupIn(dir, r.id.Point)
	if err != nil {
		return r.fail("unmount", fmt.Errorf("%w: %w", ErrBusy, err))
	}
	defer copied.Close()
	// Mounts on the mount from now on do not propagate to the copy.
	if err := sys.SetMountPropagation(copied, Private); err != nil {
		return r.fail("unmount", fmt.Errorf("%w: %w", ErrBusy, err))
	}
	// As long as the mount is there, its copy is. Were it gone, this would be the
	// copy of another.
	if err := home(r.expectNoChildren); err != nil {
		return err
	}
	between("aside")
	if err := r.logCall("umount2", "MNT_DETACH of its copy in a namespace of our own", sys.DetachMount(copied)); err != nil {
		return r.fail("unmount", fmt.Errorf("%w: %w", ErrBusy, err))
	}
	return nil
}

// unshareTree has the tree share with no other mount, unless its new parent does: it
// was put beneath the mount so that it shares, for detachAside. It stays as it is if
// another mount covers it.
func (r *replaceOp) unshareTree() {
	fd, err := r.openPoint()
	if err != nil {
		return
	}
	defer fd.Close()
	mounts, err := mountns.Table(0)
	if err != nil || expectOnMount(fd, r.attachment.state.MountInfoID) != nil {
		return
	}
	tree, _ := mounts.ByID(r.attachment.state.MountInfoID)
	if parent, ok := mounts.ByID(tree.Parent); ok && parent.Shared == 0 && tree.Shared != 0 {
		_ = r.logCall("mount_setattr", "MS_PRIVATE of the tree", sys.SetMountPropagation(fd, Private))
	}
}
