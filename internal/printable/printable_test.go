// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// evil is the subPath of an attacker, with all that terminals act on.
const evil = "x\x1b]0;pwned\x07\x1b[2J\u202e\u009b31m\x7f\r\xff\u2028\U000e0001é"

func TestForms(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]struct{ quoted, text, line string }{
		"":                         {"", "", ""},
		"plain, é 字 \"x\" a\\b":    {"plain, é 字 \"x\" a\\b", "plain, é 字 \"x\" a\\b", "plain, é 字 \"x\" a\\b"},
		"\x1b[31mred\x07":          {`\x1b[31mred\a`, `\u001b[31mred\u0007`, "[31mred"},
		"two\n lines\r\t":          {`two\n lines\r\t`, "two\n lines\\u000d\t", "two lines"},
		"\u009b31m right\u202eend": {`\u009b31m right\u202eend`, `\u009b31m right\u202eend`, "31m right end"},
		"no text \xff\xfe, \xe2":   {`no text \xff\xfe, \xe2`, "no text \uFFFD\uFFFD, \uFFFD", "no text ,"},
		"mark \uFFFD, far \U000e0001": {
			"mark \uFFFD, far \\U000e0001", "mark \uFFFD, far \\udb40\\udc01", "mark , far",
		},
	} {
		if got := Quoted(in); got != want.quoted {
			t.Errorf("Quoted(%q) = %s, want %s", in, got, want.quoted)
		}
		if got := Text(in); got != want.text {
			t.Errorf("Text(%q) = %s, want %s", in, got, want.text)
		}
		if got := Line(in); got != want.line {
			t.Errorf("Line(%q) = %s, want %s", in, got, want.line)
		}
	}
}

func unprintable(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' })
}

func TestClip(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "12345678": "12345678", "123456789": "12345...", "1234\u00e9678": "1234...", "\xff": "\uFFFD"} {
		if got := Clip(text, 8); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func FuzzForms(f *testing.F) {
	f.Add("a\x1b[31m\xff\u202e")
	f.Add(evil)
	f.Fuzz(func(t *testing.T, s string) {
		for name, form := range map[string]func(string) string{"Quoted": Quoted, "Text": Text, "Line": Line} {
			got := form(s)
			if unprintable(got) || name != "Text" && strings.ContainsAny(got, "\n\t") {
				t.Errorf("%s(%q) = %q", name, s, got)
			}
		}
		if got := Text(s); Text(got) != got {
			t.Errorf("Text(%q) changes what it has made", s)
		}
		encoded, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back, plain string
		if json.Unmarshal(encoded, &plain) != nil || json.Unmarshal([]byte(Text(string(encoded))), &back) != nil || back != plain {
			t.Errorf("the JSON of %q becomes %q", s, back)
		}
	})
}

func TestFields(t *testing.T) {
	t.Parallel()
	type inner struct {
		Name string
		When time.Time
	}
	type status struct {
		Text    string
		List    []inner
		Pointer *inner
		None    *inner
		Values  map[string]string
		Number  int
		Raw     []byte
	}
	now := time.Now()
	got := status{evil, []inner{{evil, now}}, &inner{evil, now}, nil, map[string]string{"key": evil, "ok": "ok"}, 7, []byte(evil)}
	Fields(&got)
	text := Text(evil)
	want := status{text, []inner{{text, now}}, &inner{text, now}, nil, map[string]string{"key": text, "ok": "ok"}, 7, []byte(evil)}
	if diff := cmp.Diff(want, got); diff != "" || unprintable(text) {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A log stays the same JSON, with nothing in it for a terminal.
func TestLog(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(Writer(&b), nil)).Info(evil, evil, evil, "error", errors.New(evil))
	if unprintable(b.String()) {
		t.Errorf("written: %q", b.String())
	}
	var line map[string]string
	if err := json.Unmarshal(b.Bytes(), &line); err != nil || line["msg"] != strings.ToValidUTF8(evil, "\uFFFD") {
		t.Errorf("read back: %q, error %v", line, err)
	}
	if _, err := Writer(brokenPipe{}).Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v, want that of the pipe", err)
	}
}

// TestClipMiddle: the end of a sentence stays, whatever is before it, and no character is cut.
func TestClipMiddle(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		most int
		want string
	}{
		"short":     {"found. Next: act", 16, "found. Next: act"},
		"words":     {"it is stale because of " + strings.Repeat("reason ", 20) + "Next: delete the pod", 60, "it is stale ... reason reason Next: delete the pod"},
		"one word":  {strings.Repeat("x", 100), 32, strings.Repeat("x", 9) + " ... " + strings.Repeat("x", 18)},
		"character": {strings.Repeat("字", 40), 32, strings.Repeat("字", 3) + " ... " + strings.Repeat("字", 6)},
	} {
		got := ClipMiddle(tc.text, tc.most)
		if got != tc.want || len(got) > tc.most || !utf8.ValidString(got) {
			t.Errorf("%s: %q with %d bytes, want %q", name, got, len(got), tc.want)
		}
	}
	for most := 16; most < 80; most++ {
		if got := ClipMiddle(evil+strings.Repeat(evil, 3), most); len(got) > most || !utf8.ValidString(got) {
			t.Errorf("%d bytes: %q", most, got)
		}
	}
}
