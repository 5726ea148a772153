// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api || cluster

package perf

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/test/fakenode"
)

// watch waits for unmounts in this process' own mount namespace. The kernel wakes pollers of mountinfo when a mount
// comes or goes, so that no request is wasted. They wake some 50 µs before umount2 returns, and at times before the
// unmount can be seen: from the first change on, watch looks every 100 µs. It is no os.File, as the runtime's poller
// would take the changes for itself.
type watch int

const glance = 100 * time.Microsecond

func newWatch(b *testing.B) watch {
	b.Helper()
	w, err := openWatch()
	must(b, err)
	return w
}

func openWatch() (watch, error) {
	fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return watch(fd), err
}

func (w watch) close() { _ = unix.Close(int(w)) }

// drain forgets the changes until now.
func (w watch) drain() error {
	_, err := w.changed(0)
	return err
}

// changed waits for a change since it was asked last.
func (w watch) changed(patience time.Duration) (bool, error) {
	for {
		timeout := unix.NsecToTimespec(patience.Nanoseconds())
		n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(w), Events: unix.POLLPRI}}, &timeout, nil)
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}

// unmounted waits until there is a stale bind at none of the points any more, and reports whether it is so in time.
func (w watch) unmounted(points []string, patience time.Duration) (bool, error) {
	deadline, next := time.Now().Add(patience), patience
	for _, point := range points {
		for {
			still, err := stale(point)
			if err == nil && !still {
				break
			}
			if err != nil || time.Now().After(deadline) {
				return false, err
			}
			changed, err := w.changed(next)
			if err != nil {
				return false, fmt.Errorf("poll mountinfo: %w", err)
			}
			if changed {
				next = glance
			}
		}
	}
	return true, nil
}

// current waits until a volume shows its present files, for patience at most. It returns why it does not.
func (w watch) current(v *fakenode.Volume, patience time.Duration) (why, err error) {
	for deadline := time.Now().Add(patience); ; {
		if why = v.Current(); why == nil || time.Now().After(deadline) {
			return why, nil
		}
		if _, err := w.changed(glance); err != nil {
			return nil, fmt.Errorf("poll mountinfo: %w", err)
		}
	}
}

// stale reports whether the mount at point is a file that has no name any more. If that was unmounted, there may be another
// mount by then, or the place below it, or no file. It is one system call, so that it disturbs no one.
func stale(point string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, point, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, unix.STATX_NLINK, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 && st.Nlink == 0, err
}
