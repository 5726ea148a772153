// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package sys is the door to the kernel: typed system calls, descriptors with
// an owner, threads that may leave the process' mount namespace, and probes of the
// features of the running kernel.
//
// It decides nothing. Every call returns the kernel's own error number, which callers compare with errors.Is against
// the names below; no other package imports golang.org/x/sys/unix or syscall. Nothing here blocks on a file system that
// does not answer, except where its comment warns of that: paths are opened with O_PATH only and read with
// statx(AT_STATX_DONT_SYNC).
//
// It rests on the kernel's include/uapi/linux/{mount,nsfs,stat,openat2}.h and
// on man pages statx(2), openat2(2), statmount(2), listmount(2), umount2(2),
// setns(2), mount_namespaces(7). Linux only.
package sys

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Errno is the kernel's error number.
type Errno = syscall.Errno

// The error numbers that callers in this module distinguish.
const (
	EACCES    = unix.EACCES
	EAGAIN    = unix.EAGAIN
	EBADF     = unix.EBADF
	EBUSY     = unix.EBUSY
	EEXIST    = unix.EEXIST
	EINTR     = unix.EINTR
	EINVAL    = unix.EINVAL
	EIO       = unix.EIO
	EISDIR    = unix.EISDIR
	ELOOP     = unix.ELOOP
	EMFILE    = unix.EMFILE
	ENFILE    = unix.ENFILE
	ENODEV    = unix.ENODEV
	ENOENT    = unix.ENOENT
	ENOMEM    = unix.ENOMEM
	ENOSPC    = unix.ENOSPC
	ENOSYS    = unix.ENOSYS
	ENOTBLK   = unix.ENOTBLK
	ENOTCONN  = unix.ENOTCONN
	ENOTDIR   = unix.ENOTDIR
	ENOTEMPTY = unix.ENOTEMPTY
	ENOTTY    = unix.ENOTTY
	ENXIO     = unix.ENXIO
	EPERM     = unix.EPERM
	ESRCH     = unix.ESRCH
	ESTALE    = unix.ESTALE
	ETIMEDOUT = unix.ETIMEDOUT
	EXDEV     = unix.EXDEV
)

// retryInterrupted repeats a call that a signal interrupted. The Go runtime preempts
// threads with signals, so EINTR says nothing about the call itself.
func retryInterrupted(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// retryInterruptedError is retryInterrupted for a call without a result.
func retryInterruptedError(call func() error) error {
	_, err := retryInterrupted(func() (int, error) { return 0, call() })
	return err
}
