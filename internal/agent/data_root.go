// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"kubediag.org/kubediag/internal/flags"
	"kubediag.org/kubediag/internal/linux/filelock"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Two agents meet at one data root while a DaemonSet is rolled out or a node's name was given twice. The one that comes
// second waits this long before it gives up. One that was killed and cannot end does not count (sys.LockFile).
const (
	lockTimeout = 30 * time.Second
	lockRetry   = 500 * time.Millisecond
)

// markFile says that an agent runs, and stays if it is killed.
const markFile = "running"

// idleFile has the devices that the sweep of idle devices has seen.
const idleFile = "idle-devices.json"

// openDataRoot makes the directory of journals and full results if there is none, closes it to every user but root, and takes its lock: this
// process alone holds it. The caller closes the lock, after everything that writes there has ended.
func openDataRoot(ctx context.Context, dir string, patience time.Duration) (*sys.FD, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making --data-root: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, fmt.Errorf("looking at --data-root: %w", err)
	}
	if !info.IsDir() {
		return nil, flags.Invalid("data-root", dir, "must be a directory, and no symbolic link to one")
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("closing --data-root to others: %w", err)
	}
	file := filepath.Join(dir, filelock.Agent)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		lock, err := sys.LockFile(file)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, sys.EAGAIN) {
			return nil, fmt.Errorf("locking %q: %w", file, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("locking %q: another agent uses the same --data-root: %w", file, err)
		case <-time.After(lockRetry):
		}
	}
}
