// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
)

func TestDataRootIsClosedToOthers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "open")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{dir, filepath.Join(dir, "new")} {
		root, err := openDataRoot(t.Context(), dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%q has mode %v", dir, info.Mode())
		}
		if err := root.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestDataRootBelongsToOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := openDataRoot(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openDataRoot(t.Context(), dir, 0); !errors.Is(err, sys.EAGAIN) || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("a second agent got %v", err)
	}
	waited := make(chan error)
	go func() {
		second, err := openDataRoot(t.Context(), dir, time.Minute)
		if err == nil {
			err = second.Close()
		}
		waited <- err
	}()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("who waited got %v", err)
	}
}

func TestDataRootMustBeADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, file} {
		if _, err := openDataRoot(t.Context(), path, 0); err == nil {
			t.Errorf("%q was taken for a data root", path)
		}
	}
}
