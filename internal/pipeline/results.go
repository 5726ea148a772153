// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/redact"
)

// Bounds of results. Bytes of values are counted as JSON needs them, where a control character takes six.
const (
	maxValueBytes    = 256 << 10 // of one value
	maxResultsBytes  = 512 << 10 // of all values and keys together
	maxMessageBytes  = 4096
	maxArtifactBytes = 64 << 20 // of all files of one run
	maxFiles         = 1000     // of one run
	maxKeys          = 256      // of one operation
	maxKeyBytes      = 253
	maxStackBytes    = 8 << 10
	excerptTimeout   = 5 * time.Second
)

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

// ledger holds the results of a run so far.
type ledger struct {
	whole map[string]string
	shown map[string]string
	cost  int   // of shown
	files int   // in number
	bytes int64 // of files
}

func newLedger() *ledger {
	return &ledger{whole: map[string]string{}, shown: map[string]string{}}
}

func (l *ledger) clone() *ledger {
	c := *l
	c.whole, c.shown = maps.Clone(l.whole), maps.Clone(l.shown)
	return &c
}

// room is how much of a value there is place for.
func (l *ledger) room(key string) int {
	used := l.cost
	if old, ok := l.shown[key]; ok {
		used -= costOf(key) + costOf(old)
	}
	return min(maxValueBytes, maxResultsBytes-used-costOf(key))
}

func (l *ledger) add(s stored, whole string) {
	if old, ok := l.shown[s.Key]; ok {
		l.cost -= costOf(s.Key) + costOf(old)
		delete(l.shown, s.Key)
	}
	l.whole[s.Key] = whole
	if s.File != nil {
		l.files++
		l.bytes += s.File.SizeBytes
	}
	if s.Hidden {
		return
	}
	shown := s.Value
	if s.Shown != "" || s.InFile {
		shown = s.Shown
	}
	l.shown[s.Key] = shown
	l.cost += costOf(s.Key) + costOf(shown)
}

// keep takes in the results of an operation, all or none: it writes the files, and returns what the journal is to hold.
func (x *run) keep(ctx context.Context, id int32, result processor.Result) ([]stored, error) {
	values := maps.Clone(result.Values)
	if values == nil {
		values = map[string]string{}
	}
	maps.Copy(values, result.Files)
	values, err := own(x.request().Data(), values)
	if err == nil {
		err = checkValues(values)
	}
	if err != nil {
		return nil, processor.Stalled(err)
	}
	l := x.ledger.clone()
	var all []stored
	for _, key := range slices.Sorted(maps.Keys(values)) {
		_, whole := result.Files[key]
		s, err := x.store(ctx, l, id, stored{Key: key, Value: values[key], InFile: whole, Hidden: whole})
		if err != nil {
			return nil, err
		}
		l.add(s, values[key])
		all = append(all, s)
	}
	x.ledger = l
	return all, nil
}

// own leaves out what an operation has only handed back, as a server does that answers with all it was sent. Later
// operations obey parameters and context keys, and an answer does not set them: one that differs from what was sent is
// refused. Any operation may set other keys, and the latest result of a name stands.
func own(sent, values map[string]string) (map[string]string, error) {
	results := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		switch {
		case !processor.Reserved(key):
			results[key] = values[key]
		case values[key] != sent[key]:
			return nil, fmt.Errorf("keeping results: %q is a parameter or a context key, which no result sets: the operation was sent %q and "+
				"answered %q", clip(key, maxKeyBytes), clip(sent[key], maxKeyBytes), clip(values[key], maxKeyBytes))
		}
	}
	return results, nil
}

func checkValues(values map[string]string) error {
	if len(values) > maxKeys {
		return fmt.Errorf("keeping results: %d keys, at most %d", len(values), maxKeys)
	}
	for key := range values {
		if key == "" || len(key) > maxKeyBytes || printable.Quoted(key) != key {
			return fmt.Errorf("keeping results: key %q must be printable, of 1 to %d bytes", clip(key, maxKeyBytes), maxKeyBytes)
		}
	}
	return nil
}

// store decides what becomes of one value. A hidden one is in its file alone.
func (x *run) store(ctx context.Context, l *ledger, id int32, s stored) (stored, error) {
	value := s.Value
	text := printable.Text(redact.Text(value))
	fits := costOf(text) <= l.room(s.Key)
	s.InFile = s.InFile || !fits || !utf8.ValidString(value) || costOf(value) > maxValueBytes
	if s.InFile || x.job.Operations[id].Storage != "" {
		file, err := x.file(l, id, s)
		if err != nil {
			return s, err
		}
		s.File = &file
	}
	if s.InFile {
		s.Value = ""
	}
	switch {
	case s.Hidden:
	case !fits:
		s.Shown = x.excerpt(ctx, id, s, excerptOf{text, l.room(s.Key)})
		s.Hidden = s.Shown == ""
	case s.InFile || text != value:
		s.Shown = text
	}
	return s, nil
}

// file keeps a value whole.
func (x *run) file(l *ledger, id int32, s stored) (artifact, error) {
	if total := l.bytes + int64(len(s.Value)); total > maxArtifactBytes || l.files >= maxFiles {
		return artifact{}, processor.Stalled(fmt.Errorf("keeping result %q: the run would have %d files with %d bytes, at most %d with %d",
			s.Key, l.files+1, total, maxFiles, int64(maxArtifactBytes)))
	}
	op := x.job.Operations[id]
	dir := op.Storage
	if dir == "" {
		dir = artifactDir
	}
	a, err := x.files.save(path.Join(dir, x.job.UID, fileName(id, s.Key)), s.Value)
	a.Key, a.Operation = s.Key, op.Name
	return a, err
}

// excerptOf is what an excerpt is made of, and how much it may cost.
type excerptOf struct {
	text string
	room int
}

// excerpt is the part of a value that the status shows, and where the rest is. Empty if there is no room even for that.
func (x *run) excerpt(ctx context.Context, id int32, s stored, of excerptOf) string {
	note := fmt.Sprintf("\n[cut: %d bytes in all, kept whole on node %q in %q, SHA-256 %s]",
		s.File.SizeBytes, x.job.Request.Node, path.Join(x.files.base, s.File.Path), s.File.SHA256)
	room := of.room - costOf(note)
	if room < 0 {
		return ""
	}
	text := of.text
	if e := excerpter(x.job.Operations[id].Step); e != nil {
		ctx, cancel := context.WithTimeoutCause(ctx, excerptTimeout, errTimeout)
		defer cancel()
		r := x.request()
		chosen, err := guard(ctx, x.Runner, func(context.Context) (string, error) {
			return e.Excerpt(r, s.Key, of.text, room), nil
		})
		if err == nil {
			text = printable.Text(chosen)
		}
	}
	return head(text, room) + note
}

func excerpter(s processor.Step) processor.Excerpter {
	if s.Recoverer != nil {
		e, _ := s.Recoverer.(processor.Excerpter)
		return e
	}
	e, _ := s.Processor.(processor.Excerpter)
	return e
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

// clip cuts a text to at most n bytes and says so.
func clip(text string, n int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n-3], "") + "..."
}

// told is a message for people: redacted, printable and bounded.
func told(text string) string { return clip(printable.Text(redact.Text(text)), maxMessageBytes) }
