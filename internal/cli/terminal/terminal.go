// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package terminal fits text to the place where it is shown: a terminal of some width, with or without colour and
// characters beyond ASCII, or a pipe. It knows no fault and prints nothing by itself. Text that comes from outside goes
// through package printable before it comes here; Marked and Hints do that themselves.
package terminal

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Screen is where text is shown. The zero value is a pipe with all characters, no colour and lines of any length.
type Screen struct {
	// Width is how many columns a line has. 0: a line has any length.
	Width int
	// Terminal is whether a person looks at it, Colour whether it shows colours.
	Terminal, Colour bool
	// ASCII is whether other characters cannot be shown.
	ASCII bool
}

// Widths in columns.
const (
	usual    = 80 // of a terminal that does not say
	smallest = 30 // what is less is taken for this
)

// New describes where a writer leads. env reads the environment: COLUMNS, NO_COLOR, TERM and the locale.
func New(w io.Writer, env func(string) string) Screen {
	locale := strings.ToLower(cmp.Or(env("LC_ALL"), env("LC_CTYPE"), env("LANG"))) // the first that is set, as setlocale(3) does
	s := Screen{ASCII: !strings.Contains(locale, "utf-8") && !strings.Contains(locale, "utf8")}
	if f, ok := w.(*os.File); ok {
		s.Width, s.Terminal = Size(f)
	}
	if s.Terminal && s.Width == 0 {
		s.Width = usual
	}
	if n, err := strconv.Atoi(env("COLUMNS")); err == nil && n > 0 {
		s.Width = n
	}
	if s.Width > 0 {
		s.Width = max(s.Width, smallest)
	}
	s.Colour = s.Terminal && env("NO_COLOR") == "" && env("TERM") != "" && env("TERM") != "dumb"
	return s
}

// Columns is how many columns a text takes that has one line and no colour.
func Columns(text string) (columns int) {
	for _, r := range text {
		columns += of(r)
	}
	return columns
}

func of(r rune) int {
	if r < utf8.RuneSelf {
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Pad fills a text up with blanks.
func Pad(text string, columns int) string {
	return text + strings.Repeat(" ", max(0, columns-Columns(text)))
}

// Cut takes out the middle of a text that has more columns than there are: names and paths differ at both ends.
func (s Screen) Cut(text string, columns int) string {
	if columns <= 0 || Columns(text) <= columns {
		return text
	}
	mark := "…"
	if s.ASCII {
		mark = "..."
	}
	room := columns - len([]rune(mark))
	if room < 2 {
		return head(text, columns)
	}
	at, left := len(text), room/2 // of the end as much as fits
	for at > 0 {
		r, size := utf8.DecodeLastRuneInString(text[:at])
		if left -= of(r); left < 0 {
			break
		}
		at -= size
	}
	return head(text, (room+1)/2) + mark + text[at:]
}

// head is as much of the beginning as fits.
func head(text string, columns int) string {
	for i, r := range text {
		if columns -= of(r); columns < 0 {
			return text[:i]
		}
	}
	return text
}

// Wrap breaks a text at blanks into lines that fit. The first line begins with first, the others with as many blanks as
// rest says. A word is never broken, so that a path or a command stays one.
func (s Screen) Wrap(first, text string, rest int) string {
	if s.Width == 0 {
		return first + text + "\n"
	}
	var b strings.Builder
	at, between := Columns(first), first
	for i, p := range pieces(text) {
		if i > 0 && at+Columns(p.text) > s.Width {
			between, at = "\n"+strings.Repeat(" ", rest), rest // in the place of the blank behind the last word
		}
		b.WriteString(between + p.text)
		at, between = at+Columns(p.text+p.blank), p.blank
	}
	if b.Len() == 0 {
		return strings.TrimRight(first, " ") + "\n"
	}
	return b.String() + "\n"
}

// piece is a part of a text within which no line is broken, and the blank behind it if there is one.
type piece struct{ text, blank string }

// pieces are the words of a text. Chinese is written without blanks: a line may break between two characters, but not
// before punctuation or behind an opening bracket.
func pieces(text string) (all []piece) {
	for _, word := range strings.Fields(text) {
		begin, before := 0, ' '
		for i, r := range word {
			closes := unicode.IsPunct(r) && !opens(r) && r != '`'
			if i > begin && (of(r) == 2 || of(before) == 2) && !closes && !opens(before) {
				all = append(all, piece{word[begin:i], ""})
				begin = i
			}
			before = r
		}
		all = append(all, piece{word[begin:], " "})
	}
	return all
}

func opens(r rune) bool { return unicode.In(r, unicode.Ps, unicode.Pi) }

// join puts two lines of a paragraph together: with a blank, unless both are Chinese where they meet.
func join(a, b string) string {
	last, _ := utf8.DecodeLastRuneInString(a)
	first, _ := utf8.DecodeRuneInString(b)
	if a == "" || of(last) == 2 && of(first) == 2 {
		return a + b
	}
	return a + " " + b
}

// Colour is a colour of text.
type Colour int

// Colours.
const (
	Plain  Colour = 0
	Bold   Colour = 1
	Dim    Colour = 2
	Red    Colour = 31
	Green  Colour = 32
	Yellow Colour = 33
)

// Paint colours a text if colours are shown.
func (s Screen) Paint(c Colour, text string) string {
	if !s.Colour || c == Plain || text == "" {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", c, text)
}

// signs are the ASCII forms of the characters that reports use.
var signs = map[rune]string{'✗': "x", '✓': "ok", '…': "...", '×': "x"}

// Text is a text as the screen can show it.
func (s Screen) Text(text string) string {
	if !s.ASCII {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch sign, known := signs[r]; {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		case known:
			b.WriteString(sign)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}
