// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/linux/sys"
)

// lastFile has the last scan that found faults, in a directory for files that do not outlive the machine's run.
const lastFile = "last-scan.json"

// maxLast bounds the file in bytes: 5,000 faults take a third of it.
const maxLast = 64 << 20

// lastDir is the directory of this user; empty if there is none.
func lastDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && owned(dir) == nil {
		return filepath.Join(dir, "kubediag")
	}
	if os.Geteuid() == 0 {
		return "/run/kubediag"
	}
	return ""
}

// owned refuses what belongs to another user, or may be changed by one: it names commands that are pasted into a shell.
func owned(name string) error {
	st, err := os.Lstat(name)
	if err != nil {
		return err
	}
	if uid, ok := sys.OwnerOf(st); !ok || uid != os.Geteuid() || st.Mode()&fs.ModeSymlink != 0 || st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%w: %q belongs to another user, or may be changed by one", verb.ErrRefused, name)
	}
	return nil
}

// keep writes the report down for the verb show. A scan that cannot be kept is as good as any: show scans again.
func keep(r *scanReport) {
	dir := lastDir()
	if len(r.Faults) == 0 || dir == "" {
		return
	}
	text, err := json.Marshal(r)
	if err != nil || len(text) > maxLast || os.MkdirAll(dir, 0o700) != nil || owned(dir) != nil {
		return
	}
	f, err := os.CreateTemp(dir, lastFile+".*") // two scans at once do not meet
	if err != nil {
		return
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, lastFile))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
}

// lastScan reads what keep has written. fs.ErrNotExist: nothing was kept.
func lastScan() (*scanReport, error) {
	dir := lastDir()
	if dir == "" {
		return nil, fs.ErrNotExist
	}
	name := filepath.Join(dir, lastFile)
	for _, each := range []string{dir, name} {
		if err := owned(each); err != nil {
			return nil, err
		}
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLast))
	if err != nil {
		return nil, err
	}
	r := &scanReport{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read last scan %q: %w", name, err)
	}
	if r.SchemaVersion != schemaVersion {
		return nil, fs.ErrNotExist // of another version of this program
	}
	return r, nil
}
