// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// in is an environment.
func in(pairs ...string) func(string) string {
	return func(name string) string {
		for _, pair := range pairs {
			if value, ok := strings.CutPrefix(pair, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	for name, c := range map[string]struct {
		env  []string
		want Screen
	}{
		"a terminal":           {[]string{"LANG=en_US.UTF-8", "TERM=xterm"}, Screen{Width: 80, Terminal: true, Colour: true}},
		"no colour":            {[]string{"LANG=en_US.UTF-8", "TERM=xterm", "NO_COLOR=1"}, Screen{Width: 80, Terminal: true}},
		"no name":              {[]string{"LC_CTYPE=zh_CN.utf8"}, Screen{Width: 80, Terminal: true}},
		"dumb":                 {[]string{"LANG=C.UTF-8", "TERM=dumb"}, Screen{Width: 80, Terminal: true}},
		"no locale":            {[]string{"TERM=linux"}, Screen{Width: 80, Terminal: true, Colour: true, ASCII: true}},
		"the first one counts": {[]string{"LC_ALL=C", "LANG=en_US.UTF-8"}, Screen{Width: 80, Terminal: true, ASCII: true}},
		"columns":              {[]string{"LANG=C.UTF-8", "COLUMNS=132"}, Screen{Width: 132, Terminal: true}},
		"very few":             {[]string{"LANG=C.UTF-8", "COLUMNS=3"}, Screen{Width: 30, Terminal: true}},
		"no number":            {[]string{"LANG=C.UTF-8", "COLUMNS=-7"}, Screen{Width: 80, Terminal: true}},
	} {
		if got := New(terminal, in(c.env...)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if got := New(&bytes.Buffer{}, in("LANG=C.UTF-8", "TERM=xterm")); got != (Screen{}) {
		t.Errorf("a pipe: %+v", got)
	}
	if got := New(&bytes.Buffer{}, in("COLUMNS=90")); got != (Screen{Width: 90, ASCII: true}) {
		t.Errorf("a pipe with columns: %+v", got)
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text    string
		columns int
		ascii   bool
		want    string
	}{
		{"shop/web-7d9f8b6c5-x2x9k", 24, false, "shop/web-7d9f8b6c5-x2x9k"},
		{"shop/web-7d9f8b6c5-x2x9k", 11, false, "shop/…x2x9k"},
		{"shop/web-7d9f8b6c5-x2x9k", 11, true, "shop...2x9k"},
		{"卷卷卷卷卷卷", 7, false, "卷…卷"},
		{"卷卷卷", 5, false, "卷…卷"},
		{"abcdef", 2, false, "ab"},
		{"abcdef", 0, false, "abcdef"},
		{"", 3, false, ""},
	} {
		if got := (Screen{ASCII: c.ascii}).Cut(c.text, c.columns); got != c.want || c.columns > 0 && Columns(got) > c.columns {
			t.Errorf("%q in %d columns: %q, want %q", c.text, c.columns, got, c.want)
		}
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	const text = "one two three /a/very/long/path/that/has/no/blank four"
	for columns, want := range map[int]string{
		0:  "! one two three /a/very/long/path/that/has/no/blank four\n",
		16: "! one two three\n    /a/very/long/path/that/has/no/blank\n    four\n",
		9:  "! one two\n    three\n    /a/very/long/path/that/has/no/blank\n    four\n",
	} {
		if got := (Screen{Width: columns}).Wrap("! ", text, 4); got != want {
			t.Errorf("in %d columns: %q, want %q", columns, got, want)
		}
	}
	if got := (Screen{Width: 40}).Wrap("x", "", 4); got != "x\n" {
		t.Errorf("nothing: %q", got)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	const text = "✗ web ×2 … 卷 é"
	if got := (Screen{}).Text(text); got != text {
		t.Errorf("%q", got)
	}
	if got, want := (Screen{ASCII: true}).Text(text), `x web x2 ... \u5377 \u00e9`; got != want {
		t.Errorf("in ASCII %q, want %q", got, want)
	}
}

func TestPaint(t *testing.T) {
	t.Parallel()
	if got := (Screen{}).Paint(Red, "now"); got != "now" {
		t.Errorf("without colour %q", got)
	}
	s := Screen{Colour: true}
	if got := s.Paint(Red, "now") + s.Paint(Plain, "x") + s.Paint(Red, ""); got != "\x1b[31mnow\x1b[0mx" {
		t.Errorf("%q", got)
	}
	if got := Pad("卷", 4) + "|"; got != "卷  |" {
		t.Errorf("%q", got)
	}
}

func TestWrapOfChinese(t *testing.T) {
	t.Parallel()
	s := Screen{Width: 12}
	if got, want := s.Wrap("", "挂载（`hard`）不响应，一直等待。", 0), "挂载\n（`hard`）不\n响应，一直等\n待。\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, c := range [][3]string{{"挂载", "不响应", "挂载不响应"}, {"挂载", "umount", "挂载 umount"}, {"a", "b", "a b"}, {"", "b", "b"}} {
		if got := join(c[0], c[1]); got != c[2] {
			t.Errorf("%q, want %q", got, c[2])
		}
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	const page = "# Title\n\nA paragraph that\nhas a [link](Page.md) and\n[another](https://k8s.io/x).\n\n- one item that\n  goes on\n- two\n\n" +
		"1. first\n\n   below it\n\n```sh\na  very long command that stays\n```\n\n| a | b |\n|---|---|\n"
	const want = "Title\n\nA paragraph that has\na link and another\n(https://k8s.io/x).\n\n- one item that goes\n  on\n- two\n\n" +
		"1. first\n\n   below it\n\n    a  very long command that stays\n\n| a | b |\n|---|---|\n"
	if got := (Screen{Width: 20}).Markdown(page); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
