// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
)

// A journal is a file of records, one a line, to which records are only ever added. Each has a checksum. Those that
// announce something that may change the world are on the disk before it is done; those about looking alone get there with
// the next of these. The file appears with its first record in it. A last line that is not whole was never announced, and
// is cut off; all other damage is an error.
const (
	journalVersion  = 4
	maxJournalBytes = 32 << 20
	maxRecordBytes  = 4 << 20
	maxPlanBytes    = 1 << 20

	maxFindingsBytes = 1 << 20
)

// otherFormat refuses a journal that another release has written: the meaning of its records is not known here.
func otherFormat(version int) error {
	return fmt.Errorf("%w %d, and this release reads %d only: apply a new Diagnosis", errFormat, version, journalVersion)
}

type journal struct {
	files *files
	file  *os.File
	hook  func(before bool, r record)
	seq   int
	size  int64
	over  bool // whether the run has ended
}

// openJournal opens or creates the journal of a job and reads its records.
func (r *Runner) openJournal(job job) (*journal, map[int32]*state, error) {
	j := &journal{files: r.files, hook: r.hook}
	var storage []string
	for _, op := range job.Operations {
		if op.Storage != "" && !slices.Contains(storage, op.Storage) {
			storage = append(storage, op.Storage)
		}
	}
	slices.Sort(storage)
	want := &begin{Version: journalVersion, UID: job.Request.Diagnosis.UID, Graph: job.Graph.Hash(), Storage: storage}
	name := journalName(want.UID)
	var err error
	if j.file, err = r.files.root.OpenFile(name, os.O_RDWR, 0); errors.Is(err, fs.ErrNotExist) { // it is made with its first record
		err = j.add(record{Kind: kindBegin, Begin: want}, func(line []byte) error { return r.files.write(name, string(line)) })
		if err == nil {
			j.file, err = r.files.root.OpenFile(name, os.O_RDWR, 0)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("opening journal: %w", err)
	}
	states, err := j.resume(job, want)
	if err != nil {
		j.close()
		return nil, nil, err
	}
	return j, states, nil
}

func (j *journal) close() { j.file.Close() }

func (j *journal) resume(job job, want *begin) (map[int32]*state, error) {
	records, err := j.read()
	if err != nil {
		return nil, err
	}
	switch got := records[0].Begin; {
	case got == nil || got.UID != want.UID:
		return nil, fmt.Errorf("%w: %q is not that of %q", errCorrupt, j.file.Name(), want.UID)
	case got.Graph != want.Graph:
		return nil, fmt.Errorf("%w: from %q to %q", errGraphChanged, got.Graph, want.Graph)
	}
	j.over = records[len(records)-1].Kind == kindEnd
	states := map[int32]*state{}
	for _, r := range records[1:] {
		if r.Kind == kindEnd && r.Seq == len(records) {
			break
		}
		if _, ok := job.Operations[r.Node]; !ok {
			return nil, fmt.Errorf("%w: record %d: there is no node %d", errCorrupt, r.Seq, r.Node)
		}
		if states[r.Node] == nil {
			states[r.Node] = &state{}
		}
		if !states[r.Node].apply(r) {
			return nil, fmt.Errorf("%w: record %d: %q is out of place", errCorrupt, r.Seq, r.Kind)
		}
	}
	return states, nil
}

// read returns all records, at least one, and cuts off a torn last line.
func (j *journal) read() ([]record, error) {
	if info, err := j.file.Stat(); err != nil {
		return nil, fmt.Errorf("reading journal: %w", err)
	} else if info.Size() > maxJournalBytes {
		return nil, fmt.Errorf("%w: %q has %d bytes, and no journal has more than %d", errCorrupt, j.file.Name(), info.Size(), maxJournalBytes)
	}
	var records []record
	j.size = 0
	lines := bufio.NewReaderSize(io.LimitReader(j.file, maxJournalBytes), 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("reading journal: %w", err)
		}
		// A crash may have left these bytes at the end. A whole record with another byte in the place of its newline was on the disk, so no
		// crash did that. A NUL there is a byte that never reached the disk.
		last := len(line) - 1
		if err != nil && len(records) > 0 && (last < 0 || line[last] == 0 || !whole(line[:last])) {
			break
		}
		r, bad := decode(line, len(records)+1)
		if err != nil && bad == nil {
			bad = errors.New("no newline follows the record")
		}
		if bad != nil && !errors.Is(bad, errFormat) {
			bad = fmt.Errorf("%w: line %d: %w", errCorrupt, len(records)+1, bad)
		}
		if bad != nil {
			return nil, fmt.Errorf("reading %q: %w", j.file.Name(), bad)
		}
		records = append(records, r)
		j.size += int64(len(line))
	}
	j.seq = len(records)
	return records, j.cut()
}

// write adds a record. It is on the disk no later than the next one that is announced. The error is fatal.
func (j *journal) write(r record) error {
	err := j.add(r, func(line []byte) error {
		if _, err := j.file.Write(line); err != nil {
			// Half a line must not stand before the next one.
			return errors.Join(fmt.Errorf("writing journal: %w", err), j.cut())
		}
		return nil
	})
	if err != nil {
		return &fatal{err}
	}
	return nil
}

// add makes the line of a record and has it written.
func (j *journal) add(r record, write func(line []byte) error) error {
	r.Seq = j.seq + 1
	if r.Time.IsZero() {
		r.Time = now()
	}
	line, err := encode(r)
	if err != nil {
		return err
	}
	if len(line) > maxRecordBytes || j.size+int64(len(line)) > maxJournalBytes {
		return fmt.Errorf("%w: it has %d bytes, and a record of %d is to be added", errFull, j.size, len(line))
	}
	if j.hook != nil {
		j.hook(true, r)
	}
	if err := write(line); err != nil {
		return err
	}
	j.seq, j.size = r.Seq, j.size+int64(len(line))
	if j.hook != nil {
		j.hook(false, r)
	}
	return nil
}

func (j *journal) cut() error {
	if err := j.file.Truncate(j.size); err != nil {
		return err
	}
	_, err := j.file.Seek(j.size, io.SeekStart)
	return err
}

// announce adds a record and returns when it is on the disk, with all before it. The error is fatal.
func (j *journal) announce(r record) error {
	if err := j.write(r); err != nil {
		return err
	}
	if err := j.files.sync(j.file); err != nil {
		return &fatal{fmt.Errorf("syncing journal: %w", err)}
	}
	return nil
}

// readBegin reads the first record of a journal in any format; nil if there is none to be read.
func readBegin(root *os.Root, name string) *begin {
	file, err := root.Open(name)
	if err != nil {
		return nil
	}
	defer file.Close()
	line, err := bufio.NewReader(io.LimitReader(file, maxRecordBytes)).ReadBytes('\n')
	if err != nil {
		return nil
	}
	r, err := decode(line, 1)
	if errors.Is(err, errFormat) && r.Begin == nil { // format 1
		err = json.Unmarshal(line, &r)
	}
	if err != nil && !errors.Is(err, errFormat) {
		return nil
	}
	return r.Begin
}

// now is the time as it comes back from a journal.
func now() time.Time { return time.Now().UTC().Round(0) }
