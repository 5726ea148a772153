// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"fmt"
	"strconv"

	"kubediag.org/kubediag/internal/linux/mountns"
)

// The ways in which a verb can find that it must not, or need not, act. They
// come inside an *Error. In all of them nothing has been touched, but for
// the last three.
var (
	// ErrNotMounted: nothing is mounted at the point; it is gone already.
	ErrNotMounted = errors.New("not mounted")
	// ErrChanged: another mount is at the point now, see ChangedError. If Replace returns it when it verifies, the
	// mount is gone, and another lies on the tree.
	ErrChanged = errors.New("another mount is there now")
	// ErrBusy: a mount that is not marked deleted is in use, or any mount has
	// others mounted on it.
	ErrBusy = errors.New("mount is in use")
	// ErrMayBlock: the way to the point leads over a file system that may not
	// answer, and the kernel's cache does not reach that far.
	ErrMayBlock = mountns.ErrMayBlock
	// errStillMounted: the kernel reported success, yet the mount is still in
	// the table.
	errStillMounted = errors.New("still mounted after unmount")
	// ErrOtherUnmounted: another process mounted something on a mount in use at the very moment of its removal, and the
	// new mount went in its place. The target is still there, with the replacement beneath it.
	ErrOtherUnmounted = errors.New("still mounted, and another mount made at that moment was unmounted in its place")
	// ErrNotReplaced: the mount is gone, and the replacement is not there.
	ErrNotReplaced = errors.New("unmounted without a replacement")
)

// Error is a failed operation, with its target.
type Error struct {
	Op     string // "look up", "inspect", "compare", "check", "unmount", "verify", "bind", ...
	Target string // the path it was done to
	Err    error  // an error number of package sys, or one of this package's
}

// Error is the operation, the target and the cause.
func (e *Error) Error() string { return e.Op + " " + strconv.Quote(e.Target) + ": " + e.Err.Error() }

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// ChangedError names the mount that was meant and the mount that was found. It satisfies errors.Is(err, ErrChanged).
type ChangedError struct {
	Want, Found ID
}

// Error names both mounts.
func (e *ChangedError) Error() string {
	return fmt.Sprintf("%v: want %v, found %v", ErrChanged, e.Want, e.Found)
}

// Unwrap is ErrChanged.
func (e *ChangedError) Unwrap() error { return ErrChanged }
