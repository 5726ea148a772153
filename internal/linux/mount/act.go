// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"path"

	"kubediag.org/kubediag/internal/linux/sys"
)

// reopenMount opens the point, compares the mount there with the target, and calls the caller's check. The caller
// closes the descriptor.
func (t *mountTarget) reopenMount() (*sys.FD, State, error) {
	if t.id.Point == "/" {
		return nil, State{}, t.fail("look up", ErrBusy)
	}
	fd, err := t.openPoint()
	if errors.Is(err, sys.ENOENT) {
		err = ErrNotMounted
	}
	if err != nil {
		return nil, State{}, t.fail("look up", err)
	}
	st, err := t.mountSource.identify(fd, t.id.Point)
	if err != nil {
		err = t.fail("inspect", err)
	} else {
		err = t.compareIdentity(st)
	}
	if err != nil {
		fd.Close()
		return nil, State{}, err
	}
	return fd, st, nil
}

// compareIdentity makes sure that the mount found is the target, and calls the caller's check.
func (t *mountTarget) compareIdentity(state State) error {
	if !state.Same(t.id) && !t.isRaisedCopy(state) {
		return t.fail("compare", &ChangedError{Want: t.id, Found: state.ID})
	}
	// An ID read from mountinfo has no UniqueID. If a tree was put beneath, now or in an attempt that was cut short, it
	// is the mount's parent now.
	t.id.UniqueID, t.id.Parent = state.UniqueID, state.Parent
	if t.check == nil {
		return nil
	}
	if err := t.check(state); err != nil {
		return t.fail("check", err)
	}
	return nil
}

// isRaisedCopy reports whether st is the target with a tree beneath it, from an attempt that was cut short. Then
// everything agrees but the parent, and the new parent lies on the old one.
func (t *mountTarget) isRaisedCopy(st State) bool {
	was := st.ID
	was.Parent = t.id.Parent
	if !was.Same(t.id) {
		return false
	}
	below, err := t.mountSource.mountBeneath(st.ID)
	return err == nil && below.Parent == t.id.Parent
}

// expectNoChildren returns ErrBusy if there are mounts on that mount or below it, or
// it is not where it was.
func (t *mountTarget) expectNoChildren() error {
	childless, err := t.mountSource.hasNoChildren(t.id)
	if err != nil {
		return t.fail("inspect", err)
	}
	if !childless {
		return t.explainRefusal(ErrBusy)
	}
	return nil
}

// maxExpireTries bounds how often a mount that others keep looking at is marked.
const maxExpireTries = 16

// expireMount removes a mount that nothing uses. Marking shows which mount the kernel will remove: had another been on
// top at that moment, it would now show as mounted on ours, or ours would be gone. Any use of the mount itself would
// remove the mark, so only the table is read in between.
func (t *mountTarget) expireMount() error {
	name := path.Base(t.id.Point)
	last := ErrBusy
	for range maxExpireTries {
		err := t.logCall("umount2", "MNT_EXPIRE", sys.ExpireMount(t.dir, name))
		if errors.Is(err, sys.EAGAIN) {
			if err := t.expectNoChildren(); err != nil {
				return err
			}
			err = t.logCall("umount2", "MNT_EXPIRE", sys.ExpireMount(t.dir, name))
		}
		switch {
		case errors.Is(err, sys.EBUSY):
			return t.explainRefusal(ErrBusy)
		case errors.Is(err, sys.EAGAIN):
			last = ErrBusy
		case errors.Is(err, sys.EINVAL): // locked in place, or another mount was on top and went during the call
			last = err
		default:
			return t.explainRefusal(err)
		}
		fd, _, err := t.reopenMount()
		if err != nil {
			return err
		}
		fd.Close()
	}
	return t.explainRefusal(last)
}

// explainRefusal explains a refusal by the mount table: if the mount is gone, another process has unmounted it. A
// covered mount has changed.
func (t *mountTarget) explainRefusal(err error) error {
	if err == nil {
		return nil
	}
	mounted, tableErr := t.mountSource.exists(t.id)
	if tableErr == nil && !mounted {
		err = ErrNotMounted
	}
	return t.fail("unmount", err)
}

// verify makes sure that the mount has left the table, and gives otherwise where
// it has not.
func (t *mountTarget) verify(otherwise error) error {
	mounted, err := t.mountSource.exists(t.id)
	if err != nil {
		return t.fail("verify", err)
	}
	if mounted {
		return t.fail("verify", otherwise)
	}
	return nil
}

func (t *mountTarget) fail(op string, err error) error {
	return &Error{Op: op, Target: t.id.Point, Err: err}
}
