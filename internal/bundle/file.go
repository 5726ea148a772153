// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// ErrExists is the error for a file that is there and is not to be replaced.
var ErrExists = errors.New("is there already")

// plainName has all that is not part of a plain file name.
var plainName = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// FileName is the name of the file for the bundle of a node, if the user gives none.
func FileName(node string, at time.Time) string {
	return fmt.Sprintf("kubediag-%s-%s.tar.gz", plainName.ReplaceAllString(node, "_"), at.UTC().Format("20060102T150405Z"))
}

// Check reports why Create would fail before anything is collected: there is no such directory, or, unless replace is
// set, a file or a link of that name is there already, which is an ErrExists.
func Check(name string, replace bool) error {
	if _, err := os.Stat(filepath.Dir(name)); err != nil {
		return fmt.Errorf("write %q: %w", name, err)
	}
	if _, err := os.Lstat(name); err == nil && !replace {
		return errThere(name)
	}
	return nil
}

func errThere(name string) error {
	return fmt.Errorf("%q %w: name another file with -o, or add --force", name, ErrExists)
}

// Create writes the bundle to a file of mode 0600, whole or not at all, and returns its size in bytes. A file that is
// there is replaced only if replace is set; otherwise the error is an ErrExists.
func (b *Bundle) Create(name string, replace bool) (size int64, err error) {
	file, err := os.CreateTemp(filepath.Dir(name), ".kubediag-bundle-*") // of mode 0600
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(file.Name()) }() // it is gone if it was renamed
	err = b.Write(file)
	if err == nil {
		err = file.Sync()
	}
	if st, failed := file.Stat(); failed == nil {
		size = st.Size()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	if replace {
		return size, os.Rename(file.Name(), name)
	}
	err = os.Link(file.Name(), name) // which replaces no file
	switch {
	case errors.Is(err, fs.ErrExist):
		err = errThere(name)
	case err != nil: // a file system without links
		err = copyNew(file.Name(), name)
	}
	return size, err
}

// copyNew copies a file to a new name.
func copyNew(from, to string) error {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return errThere(to)
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(out, file)
	return errors.Join(err, out.Close())
}
