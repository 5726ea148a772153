// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/redact"
	"kubediag.org/kubediag/internal/share"
)

// Bounds, beside those of the API. Bytes of results and statuses are those of their JSON, where a control character takes six.
const (
	maxMessageBytes  = 4096
	maxStackBytes    = 8 << 10
	maxArtifactBytes = 64 << 20 // of all files of one run
	maxFiles         = 1000     // of one run
	maxCopied        = 16 << 20 // of a file that is copied into the status, where there is no room for a larger one in any case
	maxKeys          = 256      // of one operation
	maxKeyBytes      = 253
	// etcd takes 1.5 MiB by default. The status has the room that the rest of the object leaves, within bounds, and its
	// results have half of that.
	maxObjectBytes = 1300 << 10
	maxStatusBytes = 2 * v1.MaxResultsBytes
	minStatusBytes = 64 << 10
)

// statusLimit is how large the status of a Diagnosis may be.
func statusLimit(d *v1.Diagnosis) int {
	rest := maxObjectBytes - size(&v1.Diagnosis{ObjectMeta: d.ObjectMeta, Spec: d.Spec})
	return max(min(rest, maxStatusBytes), minStatusBytes)
}

// shrinkStatus makes a status small enough to be stored. Nearly every one is. Copies of artifacts go first; then all lists
// and texts lose their ends, ever more of them, until the rest fits. The summary says how many faults there were.
func shrinkStatus(d *v1.Diagnosis) {
	s, limit := &d.Status, statusLimit(d)
	if size(s) > limit {
		for i := range s.Artifacts {
			s.Artifacts[i].Content = nil
		}
	}
	for most := 1024; most > 0 && size(s) > limit; most /= 4 {
		cutStatus(s, most)
	}
	if size(s) > limit {
		s.OperationResults = nil
	}
	if size(s) > limit && s.Plan != nil {
		s.Plan.Changes = nil // part of them would have another hash
	}
	if size(s) > limit {
		s.SucceededPath, s.Operations = nil, s.Operations[max(0, len(s.Operations)-100):]
	}
}

// cutStatus leaves as many entries in each list whose length is up to a processor or to the graph. It leaves as many bytes
// in each text that says why, but no fewer than a short line has.
func cutStatus(s *v1.DiagnosisStatus, most int) {
	text := max(most, 64)
	if len(s.Faults) > most { // those that stay are not all of one namespace
		s.Faults = share.InTurns(s.Faults, func(f v1.Fault) share.Owner {
			if f.Pod == nil {
				return share.Owner{}
			}
			return share.Owner{Namespace: f.Pod.Namespace, Pod: f.Pod.Name}
		})
	}
	s.FailedPaths, s.Faults, s.Artifacts = first(s.FailedPaths, most), first(s.Faults, most), first(s.Artifacts, most)
	for i := range s.Faults {
		f := &s.Faults[i]
		f.Evidence = first(f.Evidence, most)
		for j := range f.Evidence {
			f.Evidence[j] = printable.Clip(f.Evidence[j], text)
		}
	}
	for i := range s.Operations {
		o := &s.Operations[i]
		o.Message, o.Actions = printable.ClipMiddle(o.Message, text), first(o.Actions, most)
		for j := range o.Actions {
			a := &o.Actions[j]
			a.Message, a.Safety, a.Loss = printable.ClipMiddle(a.Message, text), printable.Clip(a.Safety, text), printable.Clip(a.Loss, text)
			a.Calls = first(a.Calls, text/16)
		}
	}
}

func first[T any](list []T, most int) []T { return list[:min(len(list), most)] }

func size(object any) int {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // strings, numbers and times only
	}
	return len(text)
}

// costOf is how many bytes a text takes as JSON, the quotes left out.
func costOf(text string) int {
	cost := 0
	for _, r := range text {
		cost += costOfRune(r)
	}
	return cost
}

func costOfRune(r rune) int {
	switch {
	case r == '"', r == '\\', r == '\n', r == '\r', r == '\t':
		return 2
	case r < ' ', r == '<', r == '>', r == '&', r == '\u2028', r == '\u2029', r == 0x7f:
		return 6
	}
	return utf8.RuneLen(r)
}

// head is as much of the beginning of a text as costs no more than room, whole lines if that loses little.
func head(text string, room int) string {
	for i, r := range text {
		if room -= costOfRune(r); room < 0 {
			text = text[:i]
			if line := strings.LastIndexByte(text, '\n'); line > len(text)*3/4 {
				text = text[:line]
			}
			break
		}
	}
	return text
}

// sanitize makes a text fit for people: redacted, printable and bounded.
func sanitize(text string) string {
	return printable.ClipMiddle(printable.Text(redact.Text(text)), maxMessageBytes)
}
