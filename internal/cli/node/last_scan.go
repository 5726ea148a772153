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

// lastScanFile has the last scan that found faults, in a directory for files that do not outlive the machine's run.
const lastScanFile = "last-scan.json"

// maxLastScanBytes bounds the file in bytes: 5,000 faults take a third of it.
const maxLastScanBytes = 64 << 20

// lastScanDir is the directory of this user; empty if there is none.
func lastScanDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && checkOwner(dir) == nil {
		return filepath.Join(dir, "kubediag")
	}
	if os.Geteuid() == 0 {
		return "/run/kubediag"
	}
	return ""
}

// checkOwner refuses what belongs to another user, or may be changed by one: it names commands that are pasted into a
// shell.
func checkOwner(name string) error {
	st, err := os.Lstat(name)
	if err != nil {
		return err
	}
	if uid, ok := sys.OwnerOf(st); !ok || uid != os.Geteuid() || st.Mode()&fs.ModeSymlink != 0 || st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%w: %q belongs to another user, or may be changed by one", verb.ErrRefused, name)
	}
	return nil
}

// saveLastScan writes the report down for the verb show. A scan that cannot be kept is as good as any: show scans
// again.
func saveLastScan(r *scanReport) {
	dir := lastScanDir()
	if len(r.Faults) == 0 || dir == "" {
		return
	}
	text, err := json.Marshal(r)
	if err != nil || len(text) > maxLastScanBytes || os.MkdirAll(dir, 0o700) != nil || checkOwner(dir) != nil {
		return
	}
	f, err := os.CreateTemp(dir, lastScanFile+".*") // two scans at once do not meet
	if err != nil {
		return
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, lastScanFile))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
}

// lastScan reads what keep has written. fs.ErrNotExist: nothing was kept.
func lastScan() (*scanReport, error) {
	dir := lastScanDir()
	if dir == "" {
		return nil, fs.ErrNotExist
	}
	name := filepath.Join(dir, lastScanFile)
	for _, each := range []string{dir, name} {
		if err := checkOwner(each); err != nil {
			return nil, err
		}
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLastScanBytes))
	if err != nil {
		return nil, err
	}
	report := &scanReport{}
	if err := json.Unmarshal(text, report); err != nil {
		return nil, fmt.Errorf("read last scan %q: %w", name, err)
	}
	if report.SchemaVersion != schemaVersion {
		return nil, fs.ErrNotExist // of another version of this program
	}
	return report, nil
}
