// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
