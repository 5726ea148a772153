// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"context"
	"errors"
	"path"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Options say how Unmount goes about it.
type Options struct {
	// Check has the last word, after the mount was opened afresh and found to
	// be the one meant, right before the act. It may be called several times.
	// Its error is handed on and nothing is touched.
	Check func(State) error
	// Source gives what is to be at the point instead, opened in the namespace;
	// nil for nothing. It is asked after Check, and again where what it gave has
	// been unlinked meanwhile; Unmount closes it. It is put beneath a deleted
	// mount before that goes (6.5), so that there is no moment without, and else
	// bound right afterwards. Where that cannot be, or another mount shows
	// then, nothing is.
	Source func() *sys.FD
	// DryRun does everything but the one call that unmounts.
	DryRun bool
}

// Unmount removes exactly the mount that id means from the calling thread's
// namespace, or nothing, and makes sure afterwards that it is gone from the
// mount table. An unmount of a shared mount spreads to its peers: see
// State.Shared.
//
// A mount that is marked deleted is detached through its descriptor whether it
// is in use or not. Nothing can be mounted on an unlinked root, so that is
// exact. Any other mount is removed by expiry: the kernel marks it, the mount
// table shows that it was indeed the one marked, and the kernel removes only
// what is marked still and used by nobody. A mount that others use gives
// ErrBusy.
//
// See the errors of this package. EINVAL from the unmount itself means that
// the kernel has locked the mount in place, as it does for mounts that came
// from a more privileged namespace. ctx is looked at before anything is done.
func Unmount(ctx context.Context, id ID, o Options) error {
	if err := ctx.Err(); err != nil {
		return &Error{Op: "unmount", Target: id.Point, Err: err}
	}
	u := unmounting{id: id, options: o}
	if sys.InPrivateThread() {
		return u.run()
	}
	return sys.OnThread(u.run)
}

// unmounting is one Unmount under way, on a thread of its own.
type unmounting struct {
	id      ID
	options Options
	from    view
	dir     *sys.FD // the directory that holds the point
	ask     source
}

func (u *unmounting) run() error {
	dir, err := mountns.Lookup(u.from.pid, path.Dir(u.id.Point))
	if errors.Is(err, sys.ENOENT) {
		err = ErrNotMounted
	}
	if err != nil {
		return u.fail("look up", err)
	}
	defer dir.Close()
	u.dir, u.ask = dir, u.from.ask()
	fd, st, err := u.reopen()
	if err != nil {
		return err
	}
	defer fd.Close()
	if u.options.DryRun {
		return nil
	}
	if st.Deleted {
		err = u.detach(fd)
	} else {
		fd.Close()
		err = u.expire()
	}
	if err != nil {
		return err
	}
	return u.verify()
}

// reopen opens the point, compares what is there with what is meant, and asks
// the caller's check. The caller closes the descriptor.
func (u *unmounting) reopen() (*sys.FD, State, error) {
	if u.id.Point == "/" {
		return nil, State{}, u.fail("look up", ErrBusy)
	}
	fd, err := mountns.LookupIn(u.from.pid, u.dir, u.id.Point)
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

func (u *unmounting) examine(fd *sys.FD) (State, error) {
	st, err := u.ask.identify(u.from, fd, u.id.Point)
	if err != nil {
		return State{}, u.fail("inspect", err)
	}
	if !st.Same(u.id) {
		return State{}, u.fail("compare", &ChangedError{Want: u.id, Found: st.ID})
	}
	// An ID read from mountinfo has no Unique, and what was put beneath in an
	// attempt that was cut short is what the mount is on now.
	u.id.Unique, u.id.Parent = st.Unique, st.Parent
	if u.options.Check == nil {
		return st, nil
	}
	if err := u.options.Check(st); err != nil {
		return State{}, u.fail("check", err)
	}
	return st, nil
}

// detach removes a mount whose root is unlinked, and which therefore nothing
// can have been mounted on since it was opened.
func (u *unmounting) detach(fd *sys.FD) error {
	bare, err := u.ask.bare(u.from, u.id)
	if err != nil {
		return u.fail("inspect", err)
	}
	if !bare {
		return u.explain(ErrBusy)
	}
	stacked, err := u.ask.stacked(u.from, u.id)
	if err != nil {
		return u.explain(err) // it went just now
	}
	covered := stacked || u.putBeneath(fd)
	if err := sys.DetachMount(fd); err != nil {
		return u.explain(err)
	}
	if !covered {
		u.putInPlace()
	}
	return nil
}

// sourceTries bounds how often a source is asked for that keeps being replaced.
const sourceTries = 3

// putBeneath has the source show as soon as the mount whose root fd is goes. That gives the mount another parent, so it
// is not done where it could not be told from others any more (before 6.8).
func (u *unmounting) putBeneath(fd *sys.FD) (done bool) {
	return u.id.Unique != 0 && u.withSource(func(source *sys.FD) error {
		tree, err := sys.CloneTree(source)
		if err != nil {
			return err
		}
		defer tree.Close()
		return sys.Attach(tree, fd, true)
	})
}

// putInPlace binds the source where the mount was, unless somebody else has
// mounted something there already.
func (u *unmounting) putInPlace() {
	_ = u.withSource(func(source *sys.FD) error {
		at, err := mountns.LookupIn(u.from.pid, u.dir, u.id.Point)
		if err != nil {
			return err
		}
		defer at.Close()
		if _, err := u.ask.identify(u.from, at, u.id.Point); !errors.Is(err, ErrNotMounted) {
			return ErrChanged
		}
		tree, err := sys.CloneTree(source)
		if errors.Is(err, sys.ENOSYS) {
			return sys.BindFD(source, at)
		}
		if err != nil {
			return err
		}
		defer tree.Close()
		if err := sys.Attach(tree, at, false); err != nil {
			return err
		}
		return u.takeBack(tree)
	})
}

// takeBack removes what was just put in place, where it lies on a mount that
// somebody else was faster to make.
func (u *unmounting) takeBack(tree *sys.FD) error {
	st, err := u.ask.identify(u.from, tree, u.id.Point)
	if err != nil {
		return err
	}
	covers, err := u.ask.stacked(u.from, st.ID)
	if err != nil || !covers {
		return err
	}
	tree.Close()
	own := unmounting{id: st.ID, from: u.from}
	return errors.Join(ErrChanged, own.run())
}

// withSource tells whether put worked with the source.
func (u *unmounting) withSource(put func(source *sys.FD) error) bool {
	for range sourceTries {
		if u.options.Source == nil {
			return false
		}
		source := u.options.Source()
		if source == nil {
			return false
		}
		err := put(source)
		source.Close()
		if !errors.Is(err, sys.ENOENT) {
			return err == nil
		}
	}
	return false
}

// expireTries bounds how often a mount that others keep looking at is marked.
const expireTries = 16

// expire removes a mount that nothing uses. Marking tells which mount the
// kernel will remove: had another been on top at that moment, it would now show
// as mounted on ours, or ours would be gone. Looking at the mount itself would
// take the mark away, so only the table is asked in between.
func (u *unmounting) expire() error {
	name := path.Base(u.id.Point)
	for range expireTries {
		err := sys.ExpireMount(u.dir, name)
		if errors.Is(err, sys.EAGAIN) {
			bare, bareErr := u.ask.bare(u.from, u.id)
			if bareErr != nil {
				return u.fail("inspect", bareErr)
			}
			if !bare {
				return u.explain(ErrBusy)
			}
			err = sys.ExpireMount(u.dir, name)
		}
		if errors.Is(err, sys.EBUSY) {
			err = ErrBusy
		}
		if err == nil {
			u.putInPlace()
		}
		if !errors.Is(err, sys.EAGAIN) {
			return u.explain(err)
		}
		fd, _, err := u.reopen()
		if err != nil {
			return err
		}
		fd.Close()
	}
	return u.fail("unmount", ErrBusy)
}

// explain turns a refusal into what the table says about it: a mount that is
// gone was unmounted by somebody else, and one that is covered has changed.
func (u *unmounting) explain(err error) error {
	if err == nil {
		return nil
	}
	standing, tableErr := u.ask.standing(u.from, u.id)
	if tableErr == nil && !standing {
		err = ErrNotMounted
	}
	return u.fail("unmount", err)
}

// verify makes sure that the mount has left the table.
func (u *unmounting) verify() error {
	standing, err := u.ask.standing(u.from, u.id)
	if err != nil {
		return u.fail("verify", err)
	}
	if standing {
		return u.fail("verify", ErrStillMounted)
	}
	return nil
}

func (u *unmounting) fail(op string, err error) error {
	return &Error{Op: op, Target: u.id.Point, Err: err}
}
