// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"strconv"

	"kubediag.org/kubediag/internal/linux/sys"
)

// Propagation says how a mount shares mounts and unmounts with its copies.
type Propagation = sys.Propagation

// The propagation types, see mount_namespaces(7).
const (
	Private    = sys.Private
	Slave      = sys.Slave
	Shared     = sys.Shared
	Unbindable = sys.Unbindable
)

// Bind makes source, a file or directory, visible at target as well.
func Bind(source, target string) error {
	return wrapError("bind", target, sys.BindMount(source, target))
}

// Tmpfs mounts a new, empty file system in memory of at most size bytes.
func Tmpfs(target string, size int64) error {
	return wrapError("mount tmpfs on", target, sys.NewMount("tmpfs", target, "tmpfs", "size="+strconv.FormatInt(size, 10)))
}

// SetPropagation changes how the mount at target shares with its copies;
// recursive includes the mounts below it.
func SetPropagation(target string, p Propagation, recursive bool) error {
	return wrapError("change propagation of", target, sys.SetPropagation(target, p, recursive))
}

func wrapError(op, target string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Target: target, Err: err}
}
