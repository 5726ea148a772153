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

// mountTarget is the target mount of an operation that runs on a thread of its own.
type mountTarget struct {
	id             ID
	check          func(State) error
	foreign        bool
	rootUnopenable bool    // see replaceOp.reopenUnopenable
	dir            *sys.FD // the directory that holds the point
	mountSource    mountSource
	calls          *calls.Log
}

// startOnThread runs act on a thread of its own.
func (t *mountTarget) startOnThread(ctx context.Context, act func() error) error {
	if err := ctx.Err(); err != nil {
		return t.fail("unmount", err)
	}
	if sys.InPrivateThread() {
		return act()
	}
	return sys.OnThread(act)
}

// logCall notes a call that changes the mounts at the point, and returns its error.
func (t *mountTarget) logCall(call, flags string, err error) error {
	return t.calls.Did(call, t.id.Point+" "+flags, err)
}

// openDirectory opens the directory that holds the point. The caller closes it.
func (t *mountTarget) openDirectory() error {
	open := func(dir string) (*sys.FD, error) { return mountns.Lookup(0, dir) }
	if t.foreign {
		open = mountns.LookupForeign
	}
	dir, err := open(path.Dir(t.id.Point))
	if errors.Is(err, sys.ENOENT) {
		err = ErrNotMounted
	}
	if err != nil {
		return t.fail("look up", err)
	}
	t.dir, t.mountSource = dir, chooseMountSource()
	return nil
}

// openPoint opens the point in that directory.
func (t *mountTarget) openPoint() (*sys.FD, error) {
	if t.foreign {
		return mountns.LookupForeignIn(t.dir, t.id.Point)
	}
	return mountns.LookupIn(t.dir, t.id.Point)
}
