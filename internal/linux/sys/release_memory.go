// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// sysProcessMrelease is process_mrelease(2), the same number on every architecture.
const sysProcessMrelease = 448

// ReleaseMemory takes the memory from a process that was killed and cannot end, as
// one of its threads waits in the kernel (process_mrelease, 5.15). EINVAL: it was
// not killed. ESRCH: there is none, or it has no memory left.
func ReleaseMemory(pid int) error {
	n, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	fd := newFD(n)
	defer fd.Close()
	return retryInterruptedError(func() error {
		if _, _, errno := unix.Syscall(sysProcessMrelease, uintptr(fd.Int()), 0, 0); errno != 0 {
			return errno
		}
		return nil
	})
}

// probeMemoryRelease calls it with an invalid descriptor.
func probeMemoryRelease() error {
	_, _, errno := unix.Syscall(sysProcessMrelease, ^uintptr(0), 0, 0)
	switch errno {
	case unix.EBADF:
		return nil
	case unix.EPERM: // of seccomp filters that do not know it
		return errors.ErrUnsupported
	}
	return unsupportedError(errno, unix.ENOSYS)
}
