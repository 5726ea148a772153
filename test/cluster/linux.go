// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// errLocked is returned by tryLock when somebody else holds the lock.
var errLocked = errors.New("locked by another process")

// tryLock opens path, creating it, and takes its exclusive flock without waiting. The lock lives as long as any
// descriptor of this open file; closing the file gives it up.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %q: %w", path, err)
	}
	return f, nil
}

// lock is tryLock that waits for its turn until ctx ends.
func lock(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := tryLock(path)
		if !errors.Is(err, errLocked) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for lock %q: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// detach keeps a terminal's signals from the command: who started a cluster ends it, in order.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
}

// unmount detaches the topmost mount at path from this mount namespace, busy or not.
func unmount(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %q: %w", path, err)
	}
	return nil
}

// ownedByUs says whether path itself belongs to the user that runs this process.
func ownedByUs(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && int(st.Uid) == os.Geteuid()
}
