// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"path"

	"kubediag.org/kubediag/internal/linux/sys"
)

// reopen opens the point, compares what is there with what is meant, and asks
// the caller's check. The caller closes the descriptor.
func (u *unmountOp) reopen() (*sys.FD, State, error) {
	if u.id.Point == "/" {
		return nil, State{}, u.fail("look up", ErrBusy)
	}
	fd, err := u.lookUpIn()
	if errors.Is(err, sys.ENOENT) {
		err = ErrNotMounted
	}
	if err != nil {
		return nil, State{}, u.fail("look up", err)
	}
	st, err := u.examine(fd)
	if err != nil {
		fd.Close()
		return nil, State{}, err
	}
	return fd, st, nil
}

func (u *unmountOp) examine(fd *sys.FD) (State, error) {
	st, err := u.ask.identify(fd, u.id.Point)
	if err != nil {
		return State{}, u.fail("inspect", err)
	}
	return st, u.compare(st)
}

// compare makes sure that what was found is the mount that is meant, and asks the
// caller's check.
func (u *unmountOp) compare(st State) error {
	if !st.Same(u.id) && !u.raised(st) {
		return u.fail("compare", &ChangedError{Want: u.id, Found: st.ID})
	}
	// An ID read from mountinfo has no Unique, and what was put beneath, now or
	// in an attempt that was cut short, is what the mount is on now.
	u.id.UniqueID, u.id.Parent = st.UniqueID, st.Parent
	if u.check == nil {
		return nil
	}
	if err := u.check(st); err != nil {
		return u.fail("check", err)
	}
	return nil
}

// raised reports whether st is the mount that is meant, with a tree put beneath it
// by an attempt that was cut short: everything agrees but the parent, and what
// it lies on now lies where it did.
func (u *unmountOp) raised(st State) bool {
	was := st.ID
	was.Parent = u.id.Parent
	if !was.Same(u.id) {
		return false
	}
	below, err := u.ask.beneath(st.ID)
	return err == nil && below.Parent == u.id.Parent
}

// expectBare returns ErrBusy if there are mounts on that mount or below it, or
// it is not where it was.
func (u *unmountOp) expectBare() error {
	bare, err := u.ask.hasNoChildren(u.id)
	if err != nil {
		return u.fail("inspect", err)
	}
	if !bare {
		return u.explain(ErrBusy)
	}
	return nil
}

// expireTries bounds how often a mount that others keep looking at is marked.
const expireTries = 16

// expire removes a mount that nothing uses. Marking shows which mount the kernel
// will remove: had another been on top at that moment, it would now show as mounted
// on ours, or ours would be gone. Looking at the mount itself would take the mark
// away, so only the table is asked in between.
func (u *unmountOp) expire() error {
	name := path.Base(u.id.Point)
	last := ErrBusy
	for range expireTries {
		err := u.did("umount2", "MNT_EXPIRE", sys.ExpireMount(u.dir, name))
		if errors.Is(err, sys.EAGAIN) {
			if err := u.expectBare(); err != nil {
				return err
			}
			err = u.did("umount2", "MNT_EXPIRE", sys.ExpireMount(u.dir, name))
		}
		switch {
		case errors.Is(err, sys.EBUSY):
			return u.explain(ErrBusy)
		case errors.Is(err, sys.EAGAIN):
			last = ErrBusy
		case errors.Is(err, sys.EINVAL): // locked in place, or another mount was on top and went during the call
			last = err
		default:
			return u.explain(err)
		}
		fd, _, err := u.reopen()
		if err != nil {
			return err
		}
		fd.Close()
	}
	return u.explain(last)
}

// explain turns a refusal into what the table says about it: a mount that is gone
// was unmounted by another process, and one that is covered has changed.
func (u *unmountOp) explain(err error) error {
	if err == nil {
		return nil
	}
	standing, tableErr := u.ask.exists(u.id)
	if tableErr == nil && !standing {
		err = ErrNotMounted
	}
	return u.fail("unmount", err)
}

// verify makes sure that the mount has left the table, and gives otherwise where
// it has not.
func (u *unmountOp) verify(otherwise error) error {
	standing, err := u.ask.exists(u.id)
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
