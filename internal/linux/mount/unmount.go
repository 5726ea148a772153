// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"context"
	"errors"
	"path"

	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Options say how Unmount goes about it.
type Options struct {
	// Check has the last word, after the mount was opened again and found to be the
	// one meant, right before the act. It may be called several times. Its error is
	// handed on and nothing is touched.
	Check func(State) error
	// Source returns what is to be at the point instead, opened in the namespace;
	// nil for nothing. It is asked after Check, and again if its result has been
	// unlinked meanwhile; Unmount closes it. It is put beneath a deleted mount
	// before that goes, so that there is no moment without, and else bound right
	// afterwards. If that is impossible, or another mount shows then, nothing is
	// put there.
	Source func() *sys.FD
	// Foreign says that others have made the namespace: nothing on the way to the point
	// is taken for granted then, and only a process that can be lost may call Unmount
	// (mountns.LookupForeign).
	Foreign bool
}

// Unmount removes exactly the mount that id means from the calling thread's
// namespace, or nothing, and makes sure afterwards that it is gone from the
// mount table. An unmount of a shared mount spreads to its peers: see
// State.Shared.
//
// A mount that is marked deleted is detached through its descriptor whether it
// is in use or not. Nothing can be mounted on an unlinked root, so that is
// exact. Any other mount is removed by expiry. The kernel marks it, and the mount
// table shows that it was indeed the one marked. The kernel then removes only a
// mount that is still marked and not in use. A mount that others use gives ErrBusy.
//
// See the errors of this package. EINVAL from the unmount itself means that
// the kernel has locked the mount in place, as it does for mounts that came
// from a more privileged namespace. ctx is looked at before anything is done.
func Unmount(ctx context.Context, id ID, o Options) error {
	u := unmountOp{id: id, check: o.Check, source: o.Source, foreign: o.Foreign, calls: calls.From(ctx)}
	if o.Source != nil {
		u.attach = u.attachSource
	}
	return u.start(ctx, u.unmount)
}

// unmountOp is one removal of a mount under way, on a thread of its own.
type unmountOp struct {
	id      ID
	check   func(State) error
	attach  attacher // of what is to be there instead; nil for nothing
	source  func() *sys.FD
	foreign bool
	sealed  bool    // see replaceOp.seal
	dir     *sys.FD // the directory that holds the point
	ask     source
	calls   *calls.Log

	put State // what is there instead
}

// start runs act on a thread of its own.
func (u *unmountOp) start(ctx context.Context, act func() error) error {
	if err := ctx.Err(); err != nil {
		return u.fail("unmount", err)
	}
	if sys.InPrivateThread() {
		return u.run(act)
	}
	return sys.OnThread(func() error { return u.run(act) })
}

// did notes a call that changes the mounts at the point, and returns its error.
func (u *unmountOp) did(call, flags string, err error) error {
	return u.calls.Did(call, u.id.Point+" "+flags, err)
}

// run opens the directory that holds the point for as long as act runs.
func (u *unmountOp) run(act func() error) error {
	dir, err := u.lookUp(path.Dir(u.id.Point))
	if errors.Is(err, sys.ENOENT) {
		err = ErrNotMounted
	}
	if err != nil {
		return u.fail("look up", err)
	}
	defer dir.Close()
	u.dir, u.ask = dir, chooseSource()
	return act()
}

// lookUp opens the directory that holds the point.
func (u *unmountOp) lookUp(dir string) (*sys.FD, error) {
	if u.foreign {
		return mountns.LookupForeign(dir)
	}
	return mountns.Lookup(0, dir)
}

// lookUpIn opens the point in that directory.
func (u *unmountOp) lookUpIn() (*sys.FD, error) {
	if u.foreign {
		return mountns.LookupForeignIn(u.dir, u.id.Point)
	}
	return mountns.LookupIn(u.dir, u.id.Point)
}

func (u *unmountOp) unmount() error {
	fd, st, err := u.reopen()
	if err != nil {
		return err
	}
	defer fd.Close()
	if st.Deleted {
		err = u.detachDeleted(fd)
	} else {
		fd.Close()
		if err = u.expire(); err == nil {
			_ = u.attachAt() // what there is to put is put if it can be
		}
	}
	if err != nil {
		return err
	}
	return u.verify(errStillMounted)
}

// detachDeleted removes a mount whose root is unlinked, and which therefore
// nothing can have been mounted on since it was opened.
func (u *unmountOp) detachDeleted(fd *sys.FD) error {
	if err := u.expectBare(); err != nil {
		return err
	}
	_, err := u.ask.beneath(u.id)
	if err != nil && !errors.Is(err, ErrNotMounted) {
		return u.explain(err) // it went just now
	}
	covered := err == nil || u.attachBeneath(fd) == nil
	if err := u.did("umount2", "MNT_DETACH", sys.DetachMount(fd)); err != nil {
		return u.explain(err)
	}
	if !covered {
		_ = u.attachAt() // as far as it can be
	}
	return nil
}
