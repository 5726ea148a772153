// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// MakeFolder makes a folder in base and takes the lock in it, which says that the folder has an owner. The lock is made
// under another name first, so that no process ever sees it free.
func MakeFolder(base, prefix string) (dir string, held *os.File, err error) {
	dir, err = os.MkdirTemp(base, prefix)
	if err != nil {
		return "", nil, fmt.Errorf("make folder: %w", err)
	}
	held, err = Try(filepath.Join(dir, "lock.new"))
	if err == nil {
		err = os.Rename(held.Name(), filepath.Join(dir, "lock"))
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("lock folder: %w", err), os.RemoveAll(dir))
	}
	return dir, held, nil
}

// SweepFolders is SweepFolder for several. It names on standard error those that cannot be removed: leftovers of a test that was
// killed make no other test fail.
func SweepFolders(dirs []string, remove func(dir string) error) {
	for _, dir := range dirs {
		if err := SweepFolder(dir, remove); err != nil {
			fmt.Fprintf(os.Stderr, "left behind in %s: %v\n", dir, err)
		}
	}
}

// SweepFolder has a folder of MakeFolder removed if its owner is gone.
func SweepFolder(dir string, remove func(dir string) error) error {
	path := filepath.Join(dir, "lock")
	take := tryExisting // a new lock would be in the way of a process that removes the folder just now
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		st, err := os.Lstat(dir)
		if err != nil || time.Since(st.ModTime()) < time.Minute {
			return nil // gone already, or just being made
		}
		take = Try // its owner was killed before it made one
	}
	held, err := take(path)
	if errors.Is(err, ErrHeld) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer held.Close()
	return remove(dir)
}
