// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestCreateKeepsWhatIsThere: a file is replaced if that is asked for, and nothing else is left beside it.
func TestCreateKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, FileName("no/de", time.Unix(0, 0)))
	if filepath.Base(name) != "kubediag-no_de-19700101T000000Z.tar.gz" {
		t.Errorf("name %q", name)
	}
	var b Bundle
	if err := b.Add("a.txt", "a text", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := Check(name, false); err != nil {
		t.Error(err)
	}
	if err := Check(filepath.Join(dir, "none", "b"), true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
	if err := os.WriteFile(name, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Check(name, false); !errors.Is(err, ErrExists) {
		t.Errorf("error %v, want %v", err, ErrExists)
	}
	if err := Check(name, true); err != nil {
		t.Error(err)
	}
	if _, err := b.Create(name, false); !errors.Is(err, ErrExists) {
		t.Errorf("error %v, want %v", err, ErrExists)
	}
	if content, err := os.ReadFile(name); err != nil || string(content) != "mine" {
		t.Errorf("has %q, %v", content, err)
	}
	size, err := b.Create(name, true)
	st, failed := os.Stat(name)
	if err != nil || failed != nil || st.Size() != size || st.Mode().Perm() != 0o600 {
		t.Errorf("wrote %d bytes, %v, %v, %v", size, st, err, failed)
	}
	if err := copyNew(name, name); !errors.Is(err, ErrExists) {
		t.Errorf("copied over it: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left are %v, %v", left, err)
	}
}
