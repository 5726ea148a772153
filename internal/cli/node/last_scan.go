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
	"strconv"
	"time"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/linux/sys"
)

// lastScanFile has the last scan, in a directory for files that do not outlive the machine's run.
const lastScanFile = "last-scan.json"

// keptScan is the last scan of a person, and the flags with which it is made again.
type keptScan struct {
	Report *scanReport `json:"report"`
	Flags  keptFlags   `json:"flags"`
}

// keptFlags are the flags that chose the node and the faults of a scan.
type keptFlags struct {
	Root string `json:"root,omitempty"`
	PID  int    `json:"pid,omitempty"`
	// Pods is the absolute path of the file of pods, "-" for standard input, or empty.
	Pods      string        `json:"pods,omitempty"`
	OrphanAge time.Duration `json:"orphanAge"`
	Only      []string      `json:"only,omitempty"`
	Pod       string        `json:"pod,omitempty"`
}

// keptFlags are those of a scan.
func (o scanOptions) keptFlags() keptFlags {
	pods := o.pods
	if pods != "" && pods != "-" { // for a shell in another directory
		if name, err := filepath.Abs(pods); err == nil {
			pods = name
		}
	}
	return keptFlags{o.root, o.pid, pods, o.orphanAge, o.only, o.pod}
}

// lastScanName is the file's name. Several people may be root by sudo, and each has a file.
func lastScanName() string {
	uid := os.Getenv("SUDO_UID")
	if _, err := strconv.ParseUint(uid, 10, 32); err != nil || os.Geteuid() != 0 {
		return lastScanFile
	}
	return "last-scan-" + uid + ".json"
}

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

// checkOwner refuses a file that belongs to another user, or that another user may change: its commands are pasted into a
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

// saveLastScan writes the report down for the verbs show and recover. A scan without faults takes the place of an earlier
// one, and else is not kept. A scan that cannot be kept is as good as any: show scans again.
func saveLastScan(r *scanReport, flags keptFlags) {
	dir := lastScanDir()
	if dir == "" {
		return
	}
	name := filepath.Join(dir, lastScanName())
	if _, err := os.Lstat(name); len(r.Faults) == 0 && err != nil {
		return
	}
	text, err := json.Marshal(keptScan{r, flags})
	if err != nil || os.MkdirAll(dir, 0o700) != nil || checkOwner(dir) != nil {
		return
	}
	if len(text) > maxLastScanBytes || replaceFile(name, text) != nil {
		_ = os.Remove(name) // another scan is the last one by now
	}
}

// replaceFile puts a file in the place of another at once: two scans do not meet.
func replaceFile(name string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), lastScanFile+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// lastScan reads the file that saveLastScan has written. It returns fs.ErrNotExist if there is no such file.
func lastScan() (*keptScan, error) {
	dir := lastScanDir()
	if dir == "" {
		return nil, fs.ErrNotExist
	}
	name := filepath.Join(dir, lastScanName())
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
	kept := &keptScan{}
	if err := json.Unmarshal(text, kept); err != nil {
		return nil, fmt.Errorf("read last scan %q: %w", name, err)
	}
	if kept.Report == nil || kept.Report.SchemaVersion != schemaVersion {
		return nil, fs.ErrNotExist // of another version of this program
	}
	return kept, nil
}
