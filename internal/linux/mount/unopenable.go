// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"kubediag.org/kubediag/internal/linux/mountns"
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
