// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	v1 "kubediag.org/kubediag/api/v1"
)

// spoolDir is the directory below the data root. The ends of names in it are of a whole record, and of a record that is not whole yet.
const (
	spoolDir = "records"
	wholeEnd = ".json"
	partEnd  = ".part"
	// maxRecordBytes bounds one file that is read.
	maxRecordBytes = 1 << 20
)

// spool keeps the records that the API server does not have, each in a file.
type spool struct {
	root *os.Root
}

// save puts a record on the disk.
func (s *spool) save(d *v1.Diagnosis) error {
	text, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	name := path.Join(spoolDir, d.Name)
	err = s.root.MkdirAll(spoolDir, 0o700)
	if err == nil {
		err = s.root.WriteFile(name+partEnd, text, 0o600)
	}
	if err == nil {
		err = s.root.Rename(name+partEnd, name+wholeEnd)
	}
	if err != nil {
		return fmt.Errorf("save record: %w", err)
	}
	return nil
}

// remove removes a record that the API server has.
func (s *spool) remove(name string) error {
	err := s.root.Remove(path.Join(spoolDir, name+wholeEnd))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record: %w", err)
	}
	return nil
}

// load reads the records of an earlier process, in the order of the names. It removes other files.
func (s *spool) load() ([]*v1.Diagnosis, error) {
	dir, err := s.root.Open(spoolDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open records: %w", err)
	}
	defer func() { _ = dir.Close() }() // it is only read
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var all []*v1.Diagnosis
	for _, e := range entries {
		d := &v1.Diagnosis{}
		name, whole := strings.CutSuffix(e.Name(), wholeEnd)
		if whole && len(all) < maxLoaded && s.read(e.Name(), d) == nil && d.Name == name && d.Spec.Mode == v1.ModeRecord {
			all = append(all, d)
			continue
		}
		if err := s.root.RemoveAll(path.Join(spoolDir, e.Name())); err != nil {
			return nil, fmt.Errorf("remove what is no record: %w", err)
		}
	}
	return all, nil
}

func (s *spool) read(name string, into *v1.Diagnosis) error {
	file, err := s.root.Open(path.Join(spoolDir, name))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it is only read
	text, err := io.ReadAll(io.LimitReader(file, maxRecordBytes))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
