// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package lock lets the programs that prepare tests take turns on a machine, by flock(2) on files. It is for tests
// alone.
package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld is returned by Try when another process holds the lock.
var ErrHeld = errors.New("locked by another process")

// Try opens path, creating it, and takes its exclusive flock without waiting. The lock lives as long as any descriptor
// of this open file; closing the file gives it up.
func Try(path string) (*os.File, error) { return try(path, os.O_CREATE) }

// tryExisting is Try that makes no file: where there is none, the error is fs.ErrNotExist.
func tryExisting(path string) (*os.File, error) { return try(path, 0) }

func try(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|flag, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrHeld
		}
		return nil, fmt.Errorf("lock %q: %w", path, err)
	}
	return f, nil
}

// Take is Try that waits for its turn until ctx ends.
func Take(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := Try(path)
		if !errors.Is(err, ErrHeld) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for lock %q: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
