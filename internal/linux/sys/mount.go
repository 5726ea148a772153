// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"golang.org/x/sys/unix"
)

// Propagation says how a mount shares mounts and unmounts with its copies, see
// mount_namespaces(7).
type Propagation uint64

// The propagation types.
const (
	Private    Propagation = unix.MS_PRIVATE
	Slave      Propagation = unix.MS_SLAVE
	Shared     Propagation = unix.MS_SHARED
	Unbindable Propagation = unix.MS_UNBINDABLE
)

// BindMount makes source visible at target, without the mounts below it.
func BindMount(source, target string) error {
	return unix.Mount(source, target, "", unix.MS_BIND, "")
}

// BindFD makes the file of source visible at the file of target, or at the topmost mount there by now. Only inside
// OnThread, and both must have been opened in the thread's namespace. It works on every kernel: the way leads through
// the process' own /proc.
func BindFD(source, target *FD) error {
	return inDirectory(ownProc, func() error { return unix.Mount(source.procPath(), target.procPath(), "", unix.MS_BIND, "") })
}

// NewMount mounts a new file system, as mount(2) with no flags.
func NewMount(source, target, fsType, data string) error {
	return unix.Mount(source, target, fsType, 0, data)
}

// SetPropagation changes how the mount at target shares with its copies;
// recursive includes the mounts below.
func SetPropagation(target string, p Propagation, recursive bool) error {
	flags := uintptr(p)
	if recursive {
		flags |= unix.MS_REC
	}
	return unix.Mount("", target, "", flags, "")
}
