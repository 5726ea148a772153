// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"context"
	"errors"
	"fmt"
	"path"

	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// ReplaceOptions hold the tree that Replace puts in place, and its conditions.
type ReplaceOptions struct {
	// Tree is the replacement: a copy of one mount, attached nowhere (sys.CloneTree). Once Replace has attached it, it
	// is closed; the caller closes it in any case.
	Tree *sys.FD
	// Check is called as in Options, and again right before the mount is removed. If it refuses only then, the tree
	// stays beneath the mount, where it does not show; the next Replace takes it away.
	Check func(State) error
	// Limits restrict the tree, in addition to the mount's own limits.
	Limits sys.MountAttr
}

// Replace puts a tree in the place of the mount that id names, in the calling thread's namespace, and removes that
// mount: the place is never without a mount. The tree gets the limits that the mount had (read-only, no devices, ...)
// in addition to its own. It shares only with mounts that its new parent makes it share with. Both spread to the peers
// of the parent: see State.Shared.
//
// The tree is put beneath the mount, with the call for it (6.5) or by propagation. The mount is then removed as Unmount
// does it, and if others use it, lazily: they keep their open files, and a new lookup finds the tree. This is exact,
// too: a mount that another process makes on it at that moment stays, on the tree. In namespaces of other users, a
// mount made on its root within the microseconds after the last check goes in its place (ErrOtherUnmounted). A mount
// made below its root then goes with it, without an error.
//
// If the tree cannot be put beneath, a mount that no process uses is removed and
// the tree put in place right afterwards. A mount in use is left alone: ErrBusy,
// and why the tree could not be put beneath. Nothing is touched if other mounts lie
// on the mount (ErrBusy), or if the kernel has locked it in place (EINVAL). The
// same holds if the tree's own root has been unlinked (ENOENT), or if owners of
// files are mapped (errors.ErrUnsupported).
//
// A mount whose root the kernel opens no more, as the server has disowned it
// (ESTALE, of NFS), is replaced by propagation or not at all.
//
// It succeeds if id is gone and the point shows the content of the tree already.
func Replace(ctx context.Context, id ID, o ReplaceOptions) error {
	t := &mountTarget{id: id, check: o.Check, calls: calls.From(ctx)}
	r := replaceOp{mountTarget: t, attachment: attachment{mountTarget: t}, tree: o.Tree, limits: o.Limits}
	r.attachment.attach = func(at *sys.FD, beneath bool) (*sys.FD, error) {
		if err := r.attachment.attachAtPoint(r.tree, at, beneath); err != nil {
			return nil, err
		}
		return r.tree.Dup()
	}
	return t.startOnThread(ctx, func() error {
		if err := t.openDirectory(); err != nil {
			return err
		}
		defer t.dir.Close()
		if err := r.inspectTree(); err != nil {
			return r.fail("inspect the tree for", err)
		}
		err := r.attachAndRemove()
		if (errors.Is(err, ErrNotMounted) || errors.Is(err, ErrChanged)) && r.verify(errStillMounted) == nil && r.treeIsShown() {
			return nil
		}
		return err
	})
}

// replaceOp is one Replace under way.
type replaceOp struct {
	*mountTarget
	attachment attachment
	tree       *sys.FD
	limits     sys.MountAttr
	treeRoot   sys.Stat // of the tree
}

// inspectTree makes sure that the tree is not mounted in this namespace: attaching it would move it.
func (r *replaceOp) inspectTree() (err error) {
	if r.tree == nil {
		return sys.EBADF
	}
	if r.treeRoot, err = r.tree.Stat(sys.StatType | sys.StatIno); err != nil {
		return err
	}
	// Its number is no other mount's as long as it is open.
	number, err := r.tree.FDMountID()
	if err != nil {
		return err
	}
	mounts, err := mountns.Table(0)
	if err != nil {
		return err
	}
	if m, ok := mounts.ByID(number); ok {
		return fmt.Errorf("tree is mounted already, at %q: %w", m.Point, sys.EINVAL)
	}
	return nil
}

// attachAndRemove puts the tree beneath the mount, and removes the mount. It owns the descriptor of the mount, which it closes early where an
// open one would be a use.
func (r *replaceOp) attachAndRemove() error {
	fd, state, err := r.reopenMount()
	if errors.Is(err, sys.ESTALE) {
		state, err = r.reopenUnopenable()
	}
	if err != nil {
		return err
	}
	defer fd.Close()
	if err := r.expectReplaceable(state); err != nil {
		return err
	}
	if err := r.logCall("mount_setattr", "of the tree to attach", limitTree(r.tree, state.Attr|r.limits)); err != nil {
		return r.fail("set attributes of the tree for", err)
	}
	there, err := r.findInterrupted()
	if err == nil && !there {
		r.attachment.shares = !state.Deleted && !r.rootUnopenable // nothing can be mounted on these
		err = r.attachment.attachBeneath(fd)
	}
	switch {
	case errors.Is(err, errStacked), err != nil && r.rootUnopenable:
		return r.fail("replace", fmt.Errorf("%w: %w", ErrBusy, err))
	case errors.Is(err, sys.EINVAL), errors.Is(err, errors.ErrUnsupported):
		fd.Close()
		return r.replaceUnused(err)
	case err != nil:
		return r.explainRefusal(err)
	case r.rootUnopenable:
		err = r.detachUnopenable()
	case state.Deleted: // nothing can be mounted on an unlinked root, so that this is exact
		if err = r.logCall("umount2", "MNT_DETACH", sys.DetachMount(fd)); err != nil {
			return r.explainRefusal(err)
		}
		err = r.verify(errStillMounted)
	default:
		fd.Close()
		err = r.removeCovered()
	}
	if err != nil {
		return err
	}
	if r.attachesByPropagation() {
		r.unshareTree()
	}
	r.tree.Close()
	r.attachment.discard()
	if !r.treeIsShown() {
		return r.fail("verify", ErrChanged)
	}
	return nil
}

// expectReplaceable makes sure that the tree can take the place of the mount, and that no other mount lies on that.
func (r *replaceOp) expectReplaceable(state State) error {
	if state.Attr.Has(sys.AttrIDMap) {
		return r.fail("replace", fmt.Errorf("owners of files are mapped: %w", errors.ErrUnsupported))
	}
	if !r.rootUnopenable && state.Dir != r.treeRoot.IsDir() {
		return r.fail("replace", fmt.Errorf("one is a directory, the other is none: %w", sys.ENOTDIR))
	}
	return r.expectNoChildren()
}

// detachUnopenable removes the mount, whose root cannot be opened, whether it is in use or not. Nothing holds its number: another mount there
// may have been given the same since.
func (r *replaceOp) detachUnopenable() error {
	if _, err := r.reopenUnopenable(); err != nil {
		return err
	}
	if err := r.expectNoChildren(); err != nil {
		return err
	}
	if err := r.logCall("umount2", "MNT_DETACH", sys.DetachNamed(r.dir, path.Base(r.id.Point))); err != nil {
		return r.explainRefusal(err)
	}
	return r.verify(errStillMounted)
}

// replaceUnused removes the mount if no process uses it, and then puts the tree in
// place, which cause has kept from being put beneath.
func (r *replaceOp) replaceUnused(cause error) error {
	err := r.expireMount()
	switch {
	case errors.Is(err, sys.EINVAL):
		return r.fail("replace", fmt.Errorf("locked in place by the kernel: %w", sys.EINVAL))
	case errors.Is(err, ErrBusy) && errors.Is(cause, errors.ErrUnsupported):
		return r.fail("replace", fmt.Errorf("%w: %w", ErrBusy, cause))
	case errors.Is(err, ErrBusy):
		return r.fail("replace", fmt.Errorf("%w, and its propagation lets nothing be put beneath it", ErrBusy))
	case err != nil:
		return err
	}
	if err := r.attachment.attachAt(); err != nil {
		return r.fail("put in place", fmt.Errorf("%w: %w", ErrNotReplaced, err))
	}
	return r.verify(errStillMounted)
}

// removeCovered removes the mount, beneath which the tree is by now: exactly, if no
// process uses it.
func (r *replaceOp) removeCovered() error {
	fd, _, err := r.reopenMount() // notes the mount that it is on now
	if err != nil {
		return err
	}
	fd.Close()
	err = r.expireMount()
	if err == nil {
		return r.verify(errStillMounted)
	}
	if !errors.Is(err, ErrBusy) {
		return err
	}
	if fd, _, err = r.reopenMount(); err != nil {
		return err
	}
	defer fd.Close() // its number is no other's as long as it is open
	if err = r.detachAside(); !errors.Is(err, errNoAside) {
		return err
	}
	// As a last way, it is detached as long as it is on top. A mount that another process makes below its root right
	// after the check goes with it.
	top, _, err := r.reopenMount()
	if err != nil {
		return err
	}
	defer top.Close()
	var refusal error
	err = sys.DetachMountIf(top, func() error {
		refusal = r.expectNoChildren()
		return refusal
	})
	if refusal != nil {
		return refusal
	}
	if err = r.logCall("umount2", "MNT_DETACH", err); err != nil {
		return r.explainRefusal(err)
	}
	return r.verify(ErrOtherUnmounted)
}

// treeIsShown reports whether the point shows the content of the tree.
func (r *replaceOp) treeIsShown() bool {
	fd, err := mountns.LookupIn(r.dir, r.id.Point)
	if err != nil {
		return false
	}
	defer fd.Close()
	if _, err := r.mountSource.identify(fd, r.id.Point); err != nil {
		return false
	}
	st, err := fd.Stat(sys.StatIno)
	return err == nil && st.Ino == r.treeRoot.Ino && st.Major == r.treeRoot.Major && st.Minor == r.treeRoot.Minor
}
