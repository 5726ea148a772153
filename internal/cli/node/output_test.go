// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// brokenPipe takes nothing.
type brokenPipe struct{}

var errBroken = errors.New("broken pipe")

func (brokenPipe) Write([]byte) (int, error) { return 0, errBroken }

func TestPrintable(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"":                           "",
		"plain, é 字 \"x\" a\\b":      "plain, é 字 \"x\" a\\b",
		"\x1b[31mred\x07":            `\x1b[31mred\a`,
		"two\nlines\r\t":             `two\nlines\r\t`,
		"\u009b31m":                  `\u009b31m`,
		"right\u202eleft":            `right\u202eleft`,
		"no text \xff\xfe, \xe2\x82": `no text \xff\xfe, \xe2\x82`,
		"mark \uFFFD":                "mark \uFFFD",
	} {
		if got := Printable(s); got != want {
			t.Errorf("%q is printed as %s, want %s", s, got, want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\x1b[31m\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		got := Printable(s)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q is printed as %q", s, got)
		}
	})
}

func TestJSONHasNothingForTerminals(t *testing.T) {
	t.Parallel()
	in := map[string]string{"key\u009b": "\x1b[31m \u009b \u202e \U000e0001 é <&> \\"}
	var b strings.Builder
	if err := writeJSON(&b, in); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsFunc(b.String(), func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
		t.Errorf("written: %q", b.String())
	}
	var out map[string]string
	if err := json.Unmarshal([]byte(b.String()), &out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, out); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if err := writeJSON(brokenPipe{}, in); !errors.Is(err, errBroken) {
		t.Errorf("error %v, want that of the pipe", err)
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	f := textFormat
	if err := f.Set("json"); err != nil || f != jsonFormat {
		t.Errorf("format %q, %v, want json", f, err)
	}
	for _, bad := range []string{"", "xml", "JSON", "yaml"} {
		if err := f.Set(bad); err == nil || f != jsonFormat {
			t.Errorf("%q is taken as a format", bad)
		}
	}
}
