// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"
	"unicode/utf8"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/redact"
	"kubediag.org/kubediag/internal/repair"
)

const excerptTimeout = 5 * time.Second

// stored is a result as the journal has it.
type stored struct {
	Key string `json:"key"`
	// Value is the whole value, but where InFile says that only File has it.
	Value  string    `json:"value,omitempty"`
	InFile bool      `json:"inFile,omitempty"`
	File   *artifact `json:"file,omitempty"`
	// Shown is for the status, if that differs from Value. Hidden says that there was no room for it.
	Shown  string `json:"shown,omitempty"`
	Hidden bool   `json:"hidden,omitempty"`
}

// artifact is a v1.Artifact as the journal has it: its path is relative to the data root, and it has no content.
type artifact struct {
	Key       string `json:"key"`
	Operation string `json:"operation"`
	Path      string `json:"path"`
	SizeBytes int64  `json:"size"`
	SHA256    string `json:"sha256"`
	Content   []byte `json:"-"`
}

// results are those of a run so far: whole for later operations, and bounded for the status.
type results struct {
	whole map[string]string
	shown map[string]string
	cost  int   // of shown
	files int   // in number
	bytes int64 // of files
	limit int   // of cost
}

func (r *results) add(s stored, whole string) {
	if old, ok := r.shown[s.Key]; ok {
		r.cost -= costOf(s.Key) + costOf(old)
		delete(r.shown, s.Key)
	}
	r.whole[s.Key] = whole
	if s.File != nil {
		r.files++
		r.bytes += s.File.SizeBytes
	}
	if s.Hidden {
		return
	}
	shown := s.Value
	if s.Shown != "" || s.InFile {
		shown = s.Shown
	}
	if shown == "" { // old API servers take an empty text in a patch for null, and refuse the status
		return
	}
	r.shown[s.Key] = shown
	r.cost += costOf(s.Key) + costOf(shown)
}

// keep takes in the results of the operation, all or none: it writes the files, and returns the form that the journal is to hold.
//
// A result that the operation has only handed back is left out, as a server does that answers with all it was sent. Later operations obey
// parameters and context keys, and an answer does not set them: an answer with another value than its request is refused. Any operation may set other
// keys, and the latest result of a name stands.
func (n *nodeRun) keep(ctx context.Context, result processor.Result) ([]stored, error) {
	values, sent := map[string]string{}, n.run.request().Data()
	maps.Copy(values, result.Values)
	maps.Copy(values, result.Files)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		switch {
		case !processor.Reserved(key):
			if key == "" || len(key) > maxKeyBytes || printable.Quoted(key) != key {
				return nil, processor.Stalled(fmt.Errorf("keeping results: key %q must be printable, of 1 to %d bytes", printable.Clip(key, maxKeyBytes), maxKeyBytes))
			}
		case values[key] != sent[key]:
			return nil, processor.Stalled(fmt.Errorf("keeping results: %q is a parameter or a context key, which no result sets: the operation was sent "+
				"%q and answered %q", printable.Clip(key, maxKeyBytes), printable.Clip(sent[key], maxKeyBytes), printable.Clip(values[key], maxKeyBytes)))
		default:
			delete(values, key)
		}
	}
	if len(values) > maxKeys {
		return nil, processor.Stalled(fmt.Errorf("keeping results: %d keys, at most %d", len(values), maxKeys))
	}
	kept := *n.run.results
	kept.whole, kept.shown = maps.Clone(kept.whole), maps.Clone(kept.shown)
	var all []stored
	for _, key := range slices.Sorted(maps.Keys(values)) {
		_, whole := result.Files[key]
		s, err := n.store(ctx, &kept, stored{Key: key, Value: values[key], InFile: whole, Hidden: whole})
		if err != nil {
			return nil, err
		}
		kept.add(s, values[key])
		all = append(all, s)
	}
	n.run.results = &kept
	return all, nil
}

// store decides how one value is kept beside the others. A hidden one is in its file alone.
func (n *nodeRun) store(ctx context.Context, kept *results, s stored) (stored, error) {
	value := s.Value
	used := kept.cost + costOf(s.Key)
	if old, ok := kept.shown[s.Key]; ok {
		used -= costOf(s.Key) + costOf(old)
	}
	text, room := printable.Text(redact.Text(value)), min(v1.MaxValueBytes, kept.limit-used)
	fits := costOf(text) <= room
	s.InFile = s.InFile || !fits || !utf8.ValidString(value) || costOf(value) > v1.MaxValueBytes
	if s.InFile || n.op.Storage != "" {
		if total := kept.bytes + int64(len(value)); total > maxArtifactBytes || kept.files >= maxFiles {
			return s, processor.Stalled(fmt.Errorf("keeping result %q: the run would have %d files with %d bytes, at most %d with %d",
				s.Key, kept.files+1, total, maxFiles, int64(maxArtifactBytes)))
		}
		dir := cmp.Or(n.op.Storage, artifactDir)
		name := path.Join(dir, n.run.job.Request.Diagnosis.UID, fileName(n.id, s.Key))
		if err := n.run.runner.files.write(name, value); err != nil {
			return s, fmt.Errorf("keeping %q: %w", name, err)
		}
		sum := sha256.Sum256([]byte(value))
		s.File = &artifact{Key: s.Key, Operation: n.op.Name, Path: name, SizeBytes: int64(len(value)), SHA256: hex.EncodeToString(sum[:])}
	}
	if s.InFile {
		s.Value = ""
	}
	switch {
	case s.Hidden:
	case !fits:
		s.Shown = n.excerpt(ctx, s, text, room)
		s.Hidden = s.Shown == ""
	case s.InFile || text != value:
		s.Shown = text
	}
	return s, nil
}

// excerpt is the part of a text that the status shows, and where the rest is. Empty if there is no room even for that.
func (n *nodeRun) excerpt(ctx context.Context, s stored, text string, room int) string {
	note := fmt.Sprintf("\n[cut: %d bytes in all, kept whole on node %q in %q, SHA-256 %s]",
		s.File.SizeBytes, n.run.job.Request.Node, path.Join(n.run.runner.files.base, s.File.Path), s.File.SHA256)
	if room -= costOf(note); room < 0 {
		return ""
	}
	if e, ok := n.op.Step.Processor.(processor.Excerpter); ok {
		ctx, cancel := context.WithTimeoutCause(ctx, excerptTimeout, repair.ErrTimeout)
		defer cancel()
		r := n.run.request()
		chosen, err := repair.Call(ctx, n.run.runner.calls, r, func(context.Context) (string, error) {
			return e.Excerpt(r, s.Key, text, room), nil
		})
		if err == nil {
			text = printable.Text(chosen)
		}
	}
	return head(text, room) + note
}
