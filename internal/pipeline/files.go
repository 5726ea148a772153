// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// Directories below the data root, and how the names of a journal and of a file that is not whole yet end.
const (
	journalDir  = "journal"
	artifactDir = "artifacts"
	storageRoot = "storage" // of Operations
	journalEnd  = ".jsonl"
	partEnd     = ".part"
)

// files are those that the package keeps on the disk. Names are relative to the data root, and no name and no symbolic link
// leads out of it.
type files struct {
	root *os.Root
	base string
	// volatile is whether they need not be on the disk.
	volatile bool
}

// sync waits until a file or directory is on the disk.
func (f *files) sync(file *os.File) error {
	if f.volatile {
		return nil
	}
	return file.Sync()
}

// storageDir returns the directory of an Operation's storage, relative to the data root. It lies below a directory of its own, so that no
// name that a user chooses is a name that kubediag uses. A relative path is below that; an absolute one must be below it or the data root.
func (f *files) storageDir(dir string) (string, error) {
	rel := path.Clean(dir)
	if path.IsAbs(dir) {
		var below bool
		if rel, below = strings.CutPrefix(rel, path.Join(f.base, storageRoot)+"/"); !below {
			if rel, below = strings.CutPrefix(rel, f.base+"/"); !below {
				return "", fmt.Errorf("must be below %q", f.base)
			}
		}
	}
	if !filepath.IsLocal(rel) || rel == "." {
		return "", fmt.Errorf("must be below %q", f.base)
	}
	return path.Join(storageRoot, rel), nil
}

func journalName(uid string) string { return path.Join(journalDir, uid+journalEnd) }

func (f *files) write(name, content string) error {
	if err := f.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	part := name + partEnd
	file, err := f.root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(file, content)
	if err = errors.Join(err, f.sync(file), file.Close()); err == nil {
		err = f.root.Rename(part, name)
	}
	if err != nil {
		return errors.Join(err, f.root.Remove(part))
	}
	dir, err := f.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	return f.sync(dir)
}

// load reads back a file that save has written.
func (f *files) load(a artifact) (string, error) {
	content, err := f.root.ReadFile(a.Path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != a.SHA256 {
		return "", fmt.Errorf("%w: %q has another digest than %q", errCorrupt, a.Path, a.SHA256)
	}
	return string(content), nil
}

// remove removes all files of a UID. The journal, which knows where the rest is, goes last.
func (f *files) remove(uid string) error {
	var errs []error
	if b := readBegin(f.root, journalName(uid)); b != nil && isFileName(uid) {
		for _, dir := range b.Storage {
			errs = append(errs, f.root.RemoveAll(path.Join(dir, uid)))
			if first, _, _ := strings.Cut(dir, "/"); first != storageRoot { // the run began under a release that had it there
				errs = append(errs, f.root.RemoveAll(path.Join(storageRoot, dir, uid)))
			}
		}
	}
	errs = append(errs, f.root.RemoveAll(path.Join(artifactDir, uid)))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.Join(f.root.RemoveAll(journalName(uid)+partEnd), f.root.RemoveAll(journalName(uid)))
}

// unfit is every byte that does not belong in the name of a file.
var unfit = regexp.MustCompile(`[^a-zA-Z0-9._-]+`)

// fileName makes the name of a file of a key, which can be any text. Names of different keys differ.
func fileName(node int32, key string) string {
	name := unfit.ReplaceAllString(key, "_")
	if name != key || len(name) > 100 {
		sum := sha256.Sum256([]byte(key))
		name = name[:min(len(name), 80)] + "-" + hex.EncodeToString(sum[:6])
	}
	return fmt.Sprintf("%d-%s", node, name)
}
