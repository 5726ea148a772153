// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"context"
	"errors"

	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Options say how Unmount goes about it.
type Options struct {
	// Check decides last, right before the act, after the mount was opened again and identified. It may be called
	// several times. If it returns an error, Unmount hands it on and touches nothing.
	Check func(State) error
	// Source returns the replacement, opened in the namespace; nil: there is no replacement. It is called after Check,
	// and again if its result has been unlinked meanwhile. Unmount closes the result. The replacement comes beneath a
	// deleted mount before that goes, so that there is no moment without a mount; otherwise it is bound right
	// afterwards. If that is impossible, or another mount shows then, nothing is put there.
	Source func() *sys.FD
	// Foreign: others have made the namespace. Unmount then trusts nothing on the way to the point, and only a process
	// that can be lost may call it (mountns.LookupForeign).
	Foreign bool
}

// Unmount removes exactly the mount that id means from the calling thread's
// namespace, or nothing, and makes sure afterwards that it is gone from the
// mount table. An unmount of a shared mount spreads to its peers: see
// State.Shared.
//
// A mount that is marked deleted is detached through its descriptor whether it is in use or not. Nothing can be mounted
// on an unlinked root, so that is exact. Any other mount is removed by expiry. The kernel marks it, and the mount table
// confirms that the mark is on this mount. The kernel then removes only a mount that is still marked and not in use. A
// mount that others use gives ErrBusy.
//
// See the errors of this package. EINVAL from the unmount itself means that the kernel has locked the mount in place,
// as it does for mounts that came from a more privileged namespace. If ctx has ended, Unmount does nothing.
func Unmount(ctx context.Context, id ID, o Options) error {
	u := newUnmountOp(mountTarget{id: id, check: o.Check, foreign: o.Foreign, calls: calls.From(ctx)})
	if o.Source != nil {
		u.source, u.attachment.attach = o.Source, u.attachSource
	}
	return u.startOnThread(ctx, u.unmountExactly)
}

// maxSourceTries is how often Unmount calls Source if its results keep being unlinked.
const maxSourceTries = 3

// unmountOp is one removal of a mount under way, on a thread of its own.
type unmountOp struct {
	*mountTarget
	attachment attachment
	source     func() *sys.FD
}

func newUnmountOp(t mountTarget) *unmountOp {
	return &unmountOp{mountTarget: &t, attachment: attachment{mountTarget: &t}}
}

func (u *unmountOp) unmountExactly() error {
	if err := u.openDirectory(); err != nil {
		return err
	}
	defer u.dir.Close()
	fd, st, err := u.reopenMount()
	if err != nil {
		return err
	}
	defer fd.Close()
	covered := false
	if !st.Deleted {
		fd.Close() // an open descriptor is a use
		if err := u.expireMount(); err != nil {
			return err
		}
	} else {
		// Its root is unlinked, so no process can have mounted anything on it since it was opened.
		if err := u.expectNoChildren(); err != nil {
			return err
		}
		_, err := u.mountSource.mountBeneath(u.id)
		if err != nil && !errors.Is(err, ErrNotMounted) {
			return u.explainRefusal(err) // it went just now
		}
		covered = err == nil || u.attachment.attachBeneath(fd) == nil
		if err := u.logCall("umount2", "MNT_DETACH", sys.DetachMount(fd)); err != nil {
			return u.explainRefusal(err)
		}
	}
	if !covered {
		_ = u.attachment.attachAt() // the unmount succeeds without it
	}
	return u.verify(errStillMounted)
}

// attachSource attaches a copy of the source.
func (u *unmountOp) attachSource(at *sys.FD, beneath bool) (tree *sys.FD, err error) {
	for range maxSourceTries {
		source := u.source()
		if source == nil {
			return nil, errNothingToAttach
		}
		tree, err = sys.CloneTree(source)
		switch {
		case errors.Is(err, sys.ENOSYS) && !beneath:
			tree, err = nil, u.logCall("mount", "MS_BIND", sys.BindFD(source, at))
		case err == nil:
			if err = u.attachment.attachAtPoint(tree, at, beneath); err != nil {
				tree.Close()
			}
		}
		source.Close()
		if err == nil {
			return tree, nil
		}
		if !errors.Is(err, sys.ENOENT) {
			break
		}
	}
	return nil, err
}
