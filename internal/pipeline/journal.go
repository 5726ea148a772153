// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
)

// A journal is a file of JSON lines to which records are only ever added. Those that announce something that may change
// the world are on the disk before it is done; those about what only looks get there with the next of these. A last line
// that is not whole was never announced, and is taken away; any other damage is an error.
const (
	journalVersion  = 1
	maxJournalBytes = 32 << 20
	maxRecordBytes  = 4 << 20
	maxPlanBytes    = 1 << 20

	maxFindingsBytes = 1 << 20
)

// kind of a record.
type kind string

const (
	kindBegin   kind = "begin"
	kindAttempt kind = "attempt" // is about to be made
	kindPlan    kind = "plan"    // is about to be carried out
	kindApply   kind = "apply"   // an action is about to be done
	kindApplied kind = "applied" // how it went
	kindVerify  kind = "verify"
	kindRetry   kind = "retry" // an attempt failed, and there will be another
	kindDone    kind = "done"  // an operation has ended
	kindEnd     kind = "end"
)

// record is one line.
type record struct {
	Seq  int       `json:"seq"`
	Kind kind      `json:"kind"`
	Time time.Time `json:"time"`

	Begin  *begin          `json:"begin,omitempty"`
	Node   int32           `json:"node,omitempty"`
	Plan   *processor.Plan `json:"plan,omitempty"`
	Action int             `json:"action,omitempty"`

	// Of an attempt, an action or an operation that failed, or of one that is not applicable.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Stack   string `json:"stack,omitempty"`

	Outcome  Outcome         `json:"outcome,omitempty"`
	Results  []stored        `json:"results,omitempty"`
	Findings []fault.Finding `json:"findings,omitempty"`

	wait time.Duration // before the attempt that a retry speaks of
}

// begin is what the first record says about the run.
type begin struct {
	Version int    `json:"version"`
	UID     string `json:"uid"`
	Graph   string `json:"graph"`
	// Storage lists directories, relative to the data root, that hold results of this run in one named after it.
	Storage []string `json:"storage,omitempty"`
}

type journal struct {
	file *os.File
	hook func(before bool, r record)
	seq  int
	size int64
	over bool // whether the run has ended
}

// openJournal opens or creates the journal of a job and reads what is in it.
func (r *Runner) openJournal(job Job) (*journal, map[int32]*state, error) {
	uid := job.UID
	file, err := r.files.openJournal(uid)
	if err != nil {
		return nil, nil, fmt.Errorf("opening journal: %w", err)
	}
	j := &journal{file: file, hook: r.hook}
	states, err := j.resume(job)
	if err != nil {
		j.close()
		return nil, nil, err
	}
	return j, states, nil
}

func (j *journal) close() { j.file.Close() }

func (j *journal) resume(job Job) (map[int32]*state, error) {
	records, err := j.read()
	if err != nil {
		return nil, err
	}
	want := &begin{Version: journalVersion, UID: job.UID, Graph: job.Graph.Hash(), Storage: storageOf(job)}
	if len(records) == 0 {
		return map[int32]*state{}, j.write(record{Kind: kindBegin, Begin: want})
	}
	switch got := records[0].Begin; {
	case got == nil || got.Version != want.Version || got.UID != want.UID:
		return nil, fmt.Errorf("%w: %q is not that of %q in version %d", ErrCorrupt, j.file.Name(), want.UID, want.Version)
	case got.Graph != want.Graph:
		return nil, fmt.Errorf("%w: from %q to %q", ErrGraphChanged, got.Graph, want.Graph)
	}
	j.over = records[len(records)-1].Kind == kindEnd
	return replay(job, records)
}

func storageOf(job Job) []string {
	var dirs []string
	for _, op := range job.Operations {
		if op.Storage != "" {
			dirs = append(dirs, op.Storage)
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// read gives all whole records and cuts off a last one that is not whole.
func (j *journal) read() ([]record, error) {
	var records []record
	lines := bufio.NewReaderSize(io.LimitReader(j.file, maxJournalBytes+1), 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("reading journal: %w", err)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		r, err := decode(line, len(records)+1)
		if err != nil {
			return nil, fmt.Errorf("%w: %q, line %d: %w", ErrCorrupt, j.file.Name(), len(records)+1, err)
		}
		records = append(records, r)
		j.size += int64(len(line))
	}
	j.seq = len(records)
	if err := j.file.Truncate(j.size); err != nil {
		return nil, fmt.Errorf("cutting journal: %w", err)
	}
	_, err := j.file.Seek(j.size, io.SeekStart)
	return records, err
}

func decode(line []byte, seq int) (record, error) {
	var r record
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("decoding record: %w", err)
	}
	if r.Seq != seq {
		return r, fmt.Errorf("record has number %d, not %d", r.Seq, seq)
	}
	return r, nil
}

// write adds a record. It is on the disk no later than the next one that is announced.
func (j *journal) write(r record) error {
	r.Seq = j.seq + 1
	if r.Time.IsZero() {
		r.Time = now()
	}
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding record: %w", err)
	}
	line = append(line, '\n')
	if len(line) > maxRecordBytes || j.size+int64(len(line)) > maxJournalBytes {
		return fmt.Errorf("%w: %q has %d bytes, a record %d", ErrFull, j.file.Name(), j.size, len(line))
	}
	if j.hook != nil {
		j.hook(true, r)
	}
	if _, err := j.file.Write(line); err != nil {
		// Half a line must not stand before the next one.
		return errors.Join(fmt.Errorf("writing journal: %w", err), j.cut())
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

// announce adds a record and returns when it is on the disk, with all before it.
func (j *journal) announce(r record) error {
	if err := j.write(r); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("syncing journal: %w", err)
	}
	return nil
}

// readBegin reads the first record of a journal; nil where there is none to be read.
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
	if err != nil {
		return nil
	}
	return r.Begin
}

// now is the time as it comes back from a journal.
func now() time.Time { return time.Now().UTC().Round(0) }

// notExist tells whether the error is that there is no such file.
func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
