// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDocuments(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	for name, c := range map[string]struct {
		manifest string
		want     []string // number, line and text
	}{
		"empty":                    {"", nil},
		"comments":                 {"# a\n---\n\n--- # b\n", nil},
		"one":                      {"a: 1\n", []string{"1 1 a: 1"}},
		"no line break at the end": {"a: 1\n---\nb: 2", []string{"1 1 a: 1", "2 3 b: 2"}},
		"separator at the end":     {"a: 1\n---", []string{"1 1 a: 1"}},
		"separator first":          {"---\na: 1\n---\n", []string{"1 2 a: 1"}},
		"several separators":       {"a: 1\n---\n---\n# c\n---\nb: 2\n", []string{"1 1 a: 1", "2 6 b: 2"}},
		"a comment after it":       {"a: 1\n--- # next\n\nb: 2\n", []string{"1 1 a: 1", "2 3 \nb: 2"}},
		"dashes in a text":         {"a: |\n  ---\n  b\nc: --- d\n", []string{"1 1 a: |\n  ---\n  b\nc: --- d"}},
		"windows' line breaks":     {"a: 1\r\n---\r\nb: 2\r\n", []string{"1 1 a: 1", "2 3 b: 2"}},
		"a long line":              {"a: " + long + "\n---\nb: 2\n", []string{"1 1 a: " + long, "2 3 b: 2"}},
		"a long line at the end":   {"a: 1\n---\nb: " + long, []string{"1 1 a: 1", "2 3 b: " + long}},
		"text after a separator":   {"a: 1\n--- b\nc: 3\n", []string{"1 2 invalid Yaml document separator: b", "2 3 c: 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for d, err := range Documents([]byte(c.manifest)) {
				text := strings.TrimSuffix(string(d.Text), "\n")
				if err != nil {
					text = err.Error()
				}
				got = append(got, fmt.Sprintf("%d %d %s", d.Number, d.Line, text))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("documents (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzDocuments: each document is in the lines where it is said to begin.
func FuzzDocuments(f *testing.F) {
	for _, text := range []string{"", "a\n---\nb", "---\n--- #\n\n", "a\r\n---\r\n", "--- b\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, manifest []byte) {
		lines := bytes.Split(bytes.ReplaceAll(append(bytes.Clone(manifest), '\n'), []byte("\r\n"), []byte("\n")), []byte("\n"))
		for d, err := range Documents(manifest) {
			if err != nil {
				continue
			}
			for i, line := range bytes.Split(bytes.TrimSuffix(d.Text, []byte("\n")), []byte("\n")) {
				if at := d.Line - 1 + i; at >= len(lines) || !bytes.Equal(lines[at], line) {
					t.Fatalf("line %d of %q is not %q", at+1, manifest, line)
				}
			}
		}
	})
}
