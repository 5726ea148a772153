// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/sentinel"
)

const (
	// journalFile is the name of the journal below the data root.
	journalFile = "sentinel.journal"
	// maxJournalBytes bounds the journal. If it is full, no repair begins until those that have begun are recorded, within persistInterval.
	maxJournalBytes = 4 << 20
)

// begunJournal is a file of the repairs that have begun and have no record yet, as JSON, one line for a begin and one for an end. It is
// written and not synced: the page cache outlives the process, and no mount outlives the boot, which each line names.
type begunJournal struct {
	boot string

	mu   sync.Mutex
	file *os.File
	size int64
	open map[fault.Mount]begun
}

// begun is a repair that has begun, and the decision that allowed it.
type begun struct {
	Fault    fault.Finding `json:"fault"`
	Action   fault.Action  `json:"action"`
	Decision v1.Decision   `json:"decision"`
}

// journalLine is a line of the journal. It has one of the two.
type journalLine struct {
	Boot  string       `json:"boot"`
	Begun *begun       `json:"begun,omitempty"`
	Ended *fault.Mount `json:"ended,omitempty"`
}

// openJournal opens the journal below a data root, and reads the lines of this boot.
func openJournal(root *os.Root, boot string) (*begunJournal, error) {
	file, err := root.OpenFile(journalFile, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal of the sentinel: %w", err)
	}
	j := &begunJournal{boot: boot, file: file, open: map[fault.Mount]begun{}}
	text, err := io.ReadAll(io.LimitReader(file, maxJournalBytes))
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("read journal of the sentinel: %w", err)
	}
	for text := range bytes.Lines(text) {
		var l journalLine
		if !bytes.HasSuffix(text, []byte("\n")) || json.Unmarshal(text, &l) != nil || l.Boot != boot {
			continue
		}
		if l.Begun != nil && l.Begun.Action.Mount != nil {
			j.open[*l.Begun.Action.Mount] = *l.Begun
		}
		if l.Ended != nil {
			delete(j.open, *l.Ended)
		}
	}
	j.size = int64(bytes.LastIndexByte(text, '\n') + 1)
	if err := j.cut(); err != nil {
		_ = file.Close()
		return nil, err
	}
	return j, nil
}

// cut removes half a line at the end, and all lines if no repair is open.
func (j *begunJournal) cut() error {
	if len(j.open) == 0 {
		j.size = 0
	}
	if err := j.file.Truncate(j.size); err != nil {
		return fmt.Errorf("cut journal of the sentinel: %w", err)
	}
	return nil
}

// write adds lines.
func (j *begunJournal) write(lines ...journalLine) error {
	var text []byte
	for _, l := range lines {
		l.Boot = j.boot
		one, err := json.Marshal(l)
		if err != nil {
			return fmt.Errorf("encode repair: %w", err)
		}
		text = append(append(text, one...), '\n')
	}
	if j.size+int64(len(text)) > maxJournalBytes {
		return errors.New("write journal of the sentinel: it is full until the repairs in it are recorded")
	}
	if _, err := j.file.Write(text); err != nil {
		return errors.Join(fmt.Errorf("write journal of the sentinel: %w", err), j.cut())
	}
	j.size += int64(len(text))
	return nil
}

// end closes repairs that are recorded, or have changed nothing.
func (j *begunJournal) end(mounts ...fault.Mount) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var ended []journalLine
	for _, m := range mounts {
		if _, known := j.open[m]; known {
			delete(j.open, m)
			ended = append(ended, journalLine{Ended: &m})
		}
	}
	switch {
	case len(ended) == 0:
		return nil
	case len(j.open) == 0:
		return j.cut()
	}
	return j.write(ended...)
}

// Begin writes down that a repair is about to be done, and the decision that allowed it.
func (r *Recorder) Begin(repair sentinel.Repair, decision v1.Decision) error {
	j := r.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	b := begun{Fault: repair.Fault, Action: repair.Action, Decision: decision}
	if err := j.write(journalLine{Begun: &b}); err != nil {
		return err
	}
	j.open[*repair.Action.Mount] = b
	return nil
}

// Decision returns the decision that allowed a repair which has begun.
func (r *Recorder) Decision(repair sentinel.Repair) v1.Decision {
	r.journal.mu.Lock()
	defer r.journal.mu.Unlock()
	return r.journal.open[*repair.Action.Mount].Decision
}

// Left closes a repair that has begun and has changed nothing.
func (r *Recorder) Left(repair sentinel.Repair) {
	if err := r.journal.end(*repair.Action.Mount); err != nil {
		r.Log.Error(err, "Could not close a repair that changed nothing")
	}
}

// Begun returns the repairs that an earlier process of this boot has begun, and whose ends are not known.
func (r *Recorder) Begun() (all []sentinel.Repair) {
	r.journal.mu.Lock()
	defer r.journal.mu.Unlock()
	for _, b := range r.journal.open {
		all = append(all, sentinel.Repair{Fault: b.Fault, Action: b.Action})
	}
	return all
}
