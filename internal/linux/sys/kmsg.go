// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// KernelLog is the kernel's log, from the oldest record that it still has (3.5). It never waits for a new record.
type KernelLog struct{ *FD }

// OpenKernelLog opens /dev/kmsg, as the caller's mount namespace has it, and verifies its device number (ENODEV).
// ENOENT: a container was not given it. EPERM: it takes CAP_SYSLOG. The caller closes it.
func OpenKernelLog() (*KernelLog, error) {
	fd, err := openat(unix.AT_FDCWD, "/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open /dev/kmsg: %w", err)
	}
	st, err := fd.Stat(StatType)
	if err == nil && (!st.IsCharDevice() || st.RdevMajor != 1 || st.RdevMinor != 11) {
		err = unix.ENODEV
	}
	if err != nil {
		fd.Close()
		return nil, fmt.Errorf("check /dev/kmsg: %w", err)
	}
	return &KernelLog{fd}, nil
}

// Read returns the next record in buf, cut to its length. io.EOF: there is no newer record yet. Records that were
// overwritten before they could be read are left out. EINVAL: buf is too small, and the record is lost; 8 KiB are
// enough for any.
func (l *KernelLog) Read(buf []byte) (int, error) {
	for {
		n, err := retryInterrupted(func() (int, error) { return unix.Read(l.number, buf) })
		switch {
		case err == unix.EPIPE: // overwritten; the next read gives the oldest there is
			continue
		case err == unix.EAGAIN, err == nil && n == 0:
			return 0, io.EOF
		}
		return max(n, 0), err
	}
}

// Uptime is the time since the start of the machine by the clock that the
// kernel's log goes by, as nearly as there is one: it stands still while the
// machine is suspended.
func Uptime() time.Duration { return readClock(unix.CLOCK_MONOTONIC) }
