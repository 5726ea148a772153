// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"io/fs"
	"slices"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// stateOf is the state of a file system that answers with this error.
func stateOf(err error) State {
	switch {
	case isAnyError(err, sys.ENOTCONN, sys.ECONNABORTED, sys.ESHUTDOWN):
		return Disconnected
	case errors.Is(err, sys.ESTALE):
		return Stale
	case errors.Is(err, fs.ErrPermission):
		return Denied
	case errors.Is(err, sys.ENOENT):
		return Missing
	}
	return Broken
}

// stateOfFindError is the state of a mount whose search ends with this error.
func stateOfFindError(err error) State {
	switch {
	case isAnyError(err, mount.ErrNotMounted, mount.ErrChanged, mountns.ErrChanged, mountns.ErrGone, sys.ENOENT, sys.ENOTDIR, sys.ESRCH):
		return Gone
	case clientGaveUp(err):
		return stateOf(err)
	}
	return NotProbed
}

// clientGaveUp reports whether the kernel does not even return its cached attributes of
// a mount's root. It has found that the file system's answers about the root are
// invalid, or that its server does not know it any more.
func clientGaveUp(err error) bool {
	return isAnyError(err, sys.EIO, sys.ESTALE, sys.ENOTCONN, sys.ECONNABORTED, sys.ESHUTDOWN)
}

// errnoOf is the kernel's number in err; 0 if there is none.
func errnoOf(err error) sys.Errno {
	number, _ := errors.AsType[sys.Errno](err)
	return number
}

// describeError is a sentence of evidence: the question, and the kernel's answer.
func describeError(asked string, err error) string { return asked + ": " + err.Error() }

func isAnyError(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}
