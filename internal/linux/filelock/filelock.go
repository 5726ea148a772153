// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package filelock lets one process of the node at a time do work that excludes all others. Within a process, several
// callers may have the lock at once, and exclude each other themselves.
//
// It rests on flock(2), by sys.LockFile: the lock of a process that was killed does not count.
package filelock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
)

// Names of locks below the data root of the agent: its own for as long as it runs, and that of who repairs now.
const (
	Agent   = "lock"
	Repairs = "repair.lock"
)

// ErrBusy: another process has the lock. The text names it.
var ErrBusy = errors.New("another process has the lock")

// retryInterval is how often a lock is tried that another process has.
const retryInterval = 50 * time.Millisecond

// Lock is the lock of one file. The zero value with a path is ready. It may be used from several goroutines.
type Lock struct {
	// Path is the file. It is made if it is not there, and stays.
	Path string

	mu      sync.Mutex
	holders int
	file    *sys.FD
}

// Try takes the lock, or returns ErrBusy at once. The caller calls release.
func (l *Lock) Try() (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holders == 0 {
		file, err := sys.LockFile(l.Path)
		if errors.Is(err, sys.EAGAIN) {
			owner := "" // the process that has written itself into the file, if it can be read
			if text, err := os.ReadFile(l.Path); err == nil {
				if pid, _, ok := strings.Cut(string(bytes.TrimSpace(text)), " "); ok {
					owner = ", process " + pid
				}
			}
			return nil, fmt.Errorf("lock %q: %w%s", l.Path, ErrBusy, owner)
		}
		if err != nil {
			return nil, fmt.Errorf("lock %q: %w", l.Path, err)
		}
		l.file = file
	}
	l.holders++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.holders--; l.holders == 0 {
			_ = l.file.Close() // which gives the lock back
			l.file = nil
		}
	}), nil
}

// Hold is Try until the lock is free or ctx is done.
func (l *Lock) Hold(ctx context.Context) (release func(), err error) {
	for {
		release, err := l.Try()
		if !errors.Is(err, ErrBusy) {
			return release, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(retryInterval):
		}
	}
}
