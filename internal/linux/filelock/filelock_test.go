// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// TestHoldersOfOneProcess share the lock, and no other process gets it before the last of them has given it back.
func TestHoldersOfOneProcess(t *testing.T) {
	t.Parallel()
	l := &Lock{Path: filepath.Join(t.TempDir(), "lock")}
	first, err := l.Try()
	must(t, err)
	second, err := l.Hold(t.Context())
	must(t, err)
	first()
	first() // once more changes nothing
	other := &Lock{Path: l.Path}
	if _, err := other.Try(); !errors.Is(err, ErrBusy) || !strings.Contains(fmt.Sprint(err), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("while one is left: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := other.Hold(ended); !errors.Is(err, ErrBusy) {
		t.Errorf("the wait has ended: %v", err)
	}
	second()
	release, err := other.Hold(t.Context())
	must(t, err)
	release()
}

// TestHoldWaits for the process that has the lock.
func TestHoldWaits(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lock")
	fd, err := sys.LockFile(file)
	must(t, err)
	done := make(chan error)
	go func() {
		release, err := (&Lock{Path: file}).Hold(t.Context())
		if err == nil {
			release()
		}
		done <- err
	}()
	must(t, fd.Close())
	must(t, <-done)
}

// TestNoDirectory is an error of its own.
func TestNoDirectory(t *testing.T) {
	t.Parallel()
	if _, err := (&Lock{Path: filepath.Join(t.TempDir(), "none", "lock")}).Try(); err == nil || errors.Is(err, ErrBusy) {
		t.Errorf("error %v", err)
	}
}

var must = kerneltest.Must
