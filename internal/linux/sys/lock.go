// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"golang.org/x/sys/unix"
)

// LockFile opens the file at path, makes it with mode 0600 where there is none,
// and takes its exclusive lock (flock). The lock lasts until the FD is closed
// or the process ends. EAGAIN: another process has it. The file itself is left
// behind for good: removing it would let two processes lock two files of one
// name.
func LockFile(path string) (*FD, error) {
	n, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	fd := newFD(n)
	if err := unix.Flock(fd.Int(), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = fd.Close()
		return nil, err
	}
	return fd, nil
}
