// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/jsonparts"
	"kubediag.org/kubediag/internal/repair"
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

	Begin *begin       `json:"begin,omitempty"`
	Node  int32        `json:"node,omitempty"`
	Plan  *repair.Plan `json:"plan,omitempty"`
	// Boot is the name of the boot under which a plan was made. Its mounts and devices are gone with it.
	Boot string `json:"boot,omitempty"`

	Action    actionRecord    `json:",inline"`
	Operation operationRecord `json:",inline"`

	// Reason belongs to an attempt, an action or an operation that failed, or to one that is not applicable. Any
	// operation may have a Message.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Stack   string `json:"stack,omitempty"`

	wait time.Duration // before the attempt that a retry describes
}

// MarshalJSON implements json.Marshaler: a record is one flat object.
func (r record) MarshalJSON() ([]byte, error) { return jsonparts.Marshal(r) }

// UnmarshalJSON implements json.Unmarshaler. It does not refuse unknown fields, as decode does.
func (r *record) UnmarshalJSON(text []byte) error { return jsonparts.Unmarshal(text, r) }

// actionRecord is about an action of a plan.
type actionRecord struct {
	// Index is its place in the plan.
	Index int `json:"action,omitempty"`
	// Already is set if it found nothing left to do.
	Already bool `json:"already,omitempty"`
	// Calls are the changing calls that were made.
	Calls []v1.ActionCall `json:"calls,omitempty"`
}

// operationRecord is about an operation that has ended.
type operationRecord struct {
	Outcome v1.OperationPhase `json:"outcome,omitempty"`
	// Planned is set if it ended with its plan, NoFault if it found no fault at all.
	Planned  bool            `json:"planned,omitempty"`
	NoFault  bool            `json:"noFault,omitempty"`
	Results  []stored        `json:"results,omitempty"`
	Findings []fault.Finding `json:"findings,omitempty"`
	Gone     []fault.Absence `json:"gone,omitempty"`
	// Held says why rules forbid actions of a plan that is not to be carried out, and HeldActions how many.
	Held        []string `json:"held,omitempty"`
	HeldActions int32    `json:"heldActions,omitempty"`
}

// begin is the part of the first record about the run.
type begin struct {
	Version int    `json:"version"`
	UID     string `json:"uid"`
	Graph   string `json:"graph"`
	// Storage lists directories, relative to the data root, that hold results of this run in one named after it.
	Storage []string `json:"storage,omitempty"`
}

// A line is the CRC32C of the JSON as eight hexadecimal digits, a space, the JSON, and a newline.
const checksumBytes = 9

func checksum(text []byte) string {
	return fmt.Sprintf("%08x ", crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))) // which the package makes once
}

// encode makes the line of a record.
func encode(r record) ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encoding record: %w", err)
	}
	return append([]byte(checksum(text)), append(text, '\n')...), nil
}

// decode reads a line, with its newline or without. errFormat: it is the first of a journal in another format.
func decode(line []byte, seq int) (record, error) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	if seq == 1 && bytes.HasPrefix(line, []byte(`{"seq":1,`)) {
		return record{}, otherFormat(1) // which had no checksums
	}
	if !whole(line) {
		return record{}, fmt.Errorf("record does not have its checksum")
	}
	var r record
	if err := jsonparts.Unmarshal(line[checksumBytes:], &r, (*json.Decoder).DisallowUnknownFields); err != nil {
		return r, fmt.Errorf("decoding record: %w", err)
	}
	if r.Seq != seq {
		return r, fmt.Errorf("record has number %d, not %d", r.Seq, seq)
	}
	if b := r.Begin; seq == 1 && b != nil && b.Version != journalVersion {
		return r, otherFormat(b.Version)
	}
	return r, nil
}

// whole reports whether a line, without its newline, is as it was written.
func whole(line []byte) bool {
	return len(line) > checksumBytes && string(line[:checksumBytes]) == checksum(line[checksumBytes:])
}
