// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"path"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// reopenUnopenable is reopenMount for a mount whose root cannot be opened: its server has disowned it, and every lookup
// that ends there gives ESTALE. The mount table shows the topmost mount. No process can mount anything on it either, so
// it stays on top. The kernel checks whether its root is a directory when the tree is attached: nothing is removed
// before.
func (r *replaceOp) reopenUnopenable() (State, error) {
	mounts, err := mountns.Table(0)
	if err != nil {
		return State{}, r.fail("inspect", err)
	}
	m, ok := mounts.Top(r.id.Point)
	if !ok {
		return State{}, r.fail("inspect", ErrNotMounted)
	}
	// The tableSource knows no unique numbers.
	r.rootUnopenable, r.mountSource, r.id.UniqueID = true, tableSource{}, 0
	st := stateOf(m)
	return st, r.compareIdentity(st)
}

// detachUnopenable removes a mount that cannot be opened, beneath which the tree is
// by now, whether it is in use or not. Nothing holds its number: who has mounted
// there again since may have been given the same.
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
