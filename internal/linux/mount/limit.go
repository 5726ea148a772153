// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// limitTree is sys.LimitTree on every kernel from 5.2. Only inside sys.OnThread.
// Before 5.12, tree is another copy of the same mount afterwards.
func limitTree(tree *sys.FD, attr sys.MountAttr) error {
	err := sys.LimitTree(tree, attr)
	if !noSetAttrKernels && !errors.Is(err, sys.ENOSYS) {
		return err
	}
	return whileAttached(tree, func(st State) error {
		if err := sys.SetMountPropagation(tree, Private); err != nil {
			return err
		}
		own := st.Attr &^ (sys.AttrNoATime | sys.AttrStrictATime | sys.AttrNoDirATime)
		return sys.SetMountAttr(tree, (own|attr)&^sys.AttrIDMap)
	})
}

// noSetAttrKernels is set by tests alone, to have a newer kernel do as those before 5.12.
var noSetAttrKernels bool

// whileAttached runs fn with the kernel's facts about a tree. It gives none about a tree that is attached nowhere.
func whileAttached(tree *sys.FD, fn func(State) error) error {
	return sys.WhileAttached(tree, func() error {
		number, err := tree.FDMountID()
		if err != nil {
			return err
		}
		mounts, err := mountns.Table(0)
		if err != nil {
			return err
		}
		m, ok := mounts.ByID(number)
		if !ok {
			return ErrNotMounted
		}
		return fn(stateOf(m))
	})
}
