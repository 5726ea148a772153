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
	must(t, os.MkdirAll(dir, 0o755))
	for _, dir := range []string{dir, filepath.Join(dir, "new")} {
		root, err := openDataRoot(t.Context(), dir, 0)
		must(t, err)
		info, err := os.Stat(dir)
		must(t, err)
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
	must(t, err)
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
	must(t, first.Close())
	if err := <-waited; err != nil {
		t.Errorf("who waited got %v", err)
	}
}

func TestDataRootMustBeADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	must(t, os.Symlink(dir, link))
	must(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{link, file} {
		if _, err := openDataRoot(t.Context(), path, 0); err == nil {
			t.Errorf("%q was taken for a data root", path)
		}
	}
}
