// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestTryExistingMakesNoFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	if _, err := tryExisting(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was made: %v", err)
	}
	first, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tryExisting(path); !errors.Is(err, ErrHeld) {
		t.Errorf("a lock that is held: %v", err)
	}
	first.Close()
	second, err := tryExisting(path)
	if err != nil {
		t.Fatalf("a lock that is free: %v", err)
	}
	second.Close()
}

// TestSweepGoesOnAfterALeftover has a folder that cannot be removed: the next one is, and no caller gets an error.
func TestSweepGoesOnAfterALeftover(t *testing.T) {
	t.Parallel()
	var dirs, removed []string
	for range 2 {
		dir, held, err := MakeFolder(t.TempDir(), "sweep")
		if err != nil {
			t.Fatal(err)
		}
		held.Close()
		dirs = append(dirs, dir)
	}
	SweepFolders(dirs, func(dir string) error {
		removed = append(removed, dir)
		return errors.New("its process does not end")
	})
	if !slices.Equal(removed, dirs) {
		t.Errorf("removed %q, want %q", removed, dirs)
	}
}
