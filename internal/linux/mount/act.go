// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"path"

	"kubediag.org/kubediag/internal/linux/sys"
)

// reopenMount opens the point, compares what is there with what is meant, and asks
// the caller's check. The caller closes the descriptor.
func (u *unmountOp) reopenMount() (*sys.FD, State, error) {
	if u.id.Point == "/" {
		return nil, State{}, u.fail("look up", ErrBusy)
	}
	fd, err := u.openPoint()
	if errors.Is(err, sys.ENOENT) {
		err = ErrNotMounted
	}
	if err != nil {
		return nil, State{}, u.fail("look up", err)
	}
	st, err := u.inspectOpen(fd)
	if err != nil {
		fd.Close()
		return nil, State{}, err
	}
	return fd, st, nil
}

func (u *unmountOp) inspectOpen(fd *sys.FD) (State, error) {
	st, err := u.mountSource.identify(fd, u.id.Point)
	if err != nil {
		return State{}, u.fail("inspect", err)
	}
	return st, u.compareIdentity(st)
}

// compareIdentity makes sure that what was found is the mount that is meant, and asks the
// caller's check.
func (u *unmountOp) compareIdentity(state State) error {
	if !state.Same(u.id) && !u.isRaisedCopy(state) {
		return u.fail("compare", &ChangedError{Want: u.id, Found: state.ID})
	}
	// An ID read from mountinfo has no Unique, and what was put beneath, now or
	// in an attempt that was cut short, is what the mount is on now.
	u.id.UniqueID, u.id.Parent = state.UniqueID, state.Parent
	if u.check == nil {
		return nil
	}
	if err := u.check(state); err != nil {
		return u.fail("check", err)
	}
	return nil
}

// isRaisedCopy reports whether st is the mount that is meant, with a tree put beneath it
// by an attempt that was cut short: everything agrees but the parent, and what
// it lies on now lies where it did.
func (u *unmountOp) isRaisedCopy(st State) bool {
	was := st.ID
	was.Parent = u.id.Parent
	if !was.Same(u.id) {
		return false
	}
	below, err := u.mountSource.mountBeneath(st.ID)
	return err == nil && below.Parent == u.id.Parent
}

// expectNoChildren returns ErrBusy if there are mounts on that mount or below it, or
// it is not where it was.
func (u *unmountOp) expectNoChildren() error {
	bare, err := u.mountSource.hasNoChildren(u.id)
	if err != nil {
		return u.fail("inspect", err)
	}
	if !bare {
		return u.explainRefusal(ErrBusy)
	}
	return nil
}

// maxExpireTries bounds how often a mount that others keep looking at is marked.
const maxExpireTries = 16

// expireMount removes a mount that nothing uses. Marking shows which mount the kernel
// will remove: had another been on top at that moment, it would now show as mounted
// on ours, or ours would be gone. Looking at the mount itself would take the mark
// away, so only the table is asked in between.
func (u *unmountOp) expireMount() error {
	name := path.Base(u.id.Point)
	last := ErrBusy
	for range maxExpireTries {
		err := u.logCall("umount2", "MNT_EXPIRE", sys.ExpireMount(u.dir, name))
		if errors.Is(err, sys.EAGAIN) {
			if err := u.expectNoChildren(); err != nil {
				return err
			}
			err = u.logCall("umount2", "MNT_EXPIRE", sys.ExpireMount(u.dir, name))
		}
		switch {
		case errors.Is(err, sys.EBUSY):
			return u.explainRefusal(ErrBusy)
		case errors.Is(err, sys.EAGAIN):
			last = ErrBusy
		case errors.Is(err, sys.EINVAL): // locked in place, or another mount was on top and went during the call
			last = err
		default:
			return u.explainRefusal(err)
		}
		fd, _, err := u.reopenMount()
		if err != nil {
			return err
		}
		fd.Close()
	}
	return u.explainRefusal(last)
}

// explainRefusal turns a refusal into what the table says about it: a mount that is gone
// was unmounted by another process, and one that is covered has changed.
func (u *unmountOp) explainRefusal(err error) error {
	if err == nil {
		return nil
	}
	standing, tableErr := u.mountSource.exists(u.id)
	if tableErr == nil && !standing {
		err = ErrNotMounted
	}
	return u.fail("unmount", err)
}

// verify makes sure that the mount has left the table, and gives otherwise where
// it has not.
func (u *unmountOp) verify(otherwise error) error {
	standing, err := u.mountSource.exists(u.id)
	if err != nil {
		return u.fail("verify", err)
	}
	if standing {
		return u.fail("verify", otherwise)
	}
	return nil
}

func (u *unmountOp) fail(op string, err error) error {
	return &Error{Op: op, Target: u.id.Point, Err: err}
}
