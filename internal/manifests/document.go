// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"iter"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// Document is one document of a manifest.
type Document struct {
	// Number counts the documents of the manifest from 1, and Line is the line where this one begins, from 1.
	Number, Line int
	Text         []byte
}

// Documents yields the documents of a manifest, split as kubectl splits them. Documents of comments and blank lines alone are left out.
// An error is about the document, and the next ones are read.
func Documents(manifest []byte) iter.Seq2[Document, error] {
	return func(yield func(Document, error) bool) {
		source := &lineReader{left: manifest}
		reader := yaml.NewYAMLReader(bufio.NewReader(source))
		for number := 1; ; {
			text, err := reader.Read()
			if errors.Is(err, io.EOF) {
				return
			}
			for bytes.HasPrefix(text, []byte("---")) { // before the first document
				_, text, _ = bytes.Cut(text, []byte("\n"))
			}
			if err == nil && isBlank(text) {
				continue
			}
			begin := source.lines - bytes.Count(text, []byte("\n"))
			if source.ended {
				begin++ // no separator was read after it
			}
			if !yield(Document{number, begin, text}, err) {
				return
			}
			number++
		}
	}
}

// isBlank reports whether a document has only comments and blank lines.
func isBlank(text []byte) bool {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// lineReader hands out one line at a time, so that its user has read the lines that it counts and no other.
type lineReader struct {
	left  []byte
	lines int
	ended bool
}

// Read reads the rest of a line. A last line without a line break gets one.
func (r *lineReader) Read(into []byte) (int, error) {
	if len(r.left) == 0 {
		r.ended = true
		return 0, io.EOF
	}
	line := r.left
	if end := bytes.IndexByte(line, '\n'); end >= 0 {
		line = line[:end+1]
	} else {
		line = append(bytes.Clone(line), '\n')
	}
	n := copy(into, line)
	r.left = r.left[min(n, len(r.left)):]
	if line[n-1] == '\n' {
		r.lines++
	}
	return n, nil
}
