// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"strings"

	"kubediag.org/kubediag/internal/printable"
)

// Marked is a text behind a mark in colour. The text of before stands before the mark. Its other lines are indented as far.
func (s Screen) Marked(before, mark string, c Colour, text string) string {
	first := before + mark + " "
	lines := s.Wrap(first, printable.Quoted(text), Columns(first))
	return before + s.Paint(c, mark) + strings.TrimPrefix(lines, before+mark)
}

// Hint is a line to paste and its purpose.
type Hint struct{ Line, Purpose string }

// Hints are lines to paste, with their purpose behind them, or above them if that does not fit. The others make no room for
// a line for which beside is false; nil: they do for each.
func (s Screen) Hints(list []Hint, beside func(line string) bool) string {
	var b strings.Builder
	column := 0
	for _, h := range list {
		if beside == nil || beside(h.Line) {
			column = max(column, Columns(h.Line))
		}
	}
	for _, h := range list {
		purpose := printable.Quoted(h.Purpose)
		if Columns(h.Line) > column || s.Width > 0 && 2+column+4+Columns(purpose) > s.Width {
			b.WriteString(s.Wrap("  # ", purpose, 4) + "  " + h.Line + "\n")
			continue
		}
		b.WriteString("  " + Pad(h.Line, column) + "  " + s.Paint(Dim, "# "+purpose) + "\n")
	}
	return b.String()
}

// ScreenLines is how many lines of text a person sees at once.
const ScreenLines = 40

// FitParts joins the parts of a list. For a person it has those that fit a screen beside some other lines, but at least one, and a line
// about the number of the others.
func (s Screen) FitParts(parts []string, otherLines int, rest func(n int) string) string {
	n := len(parts)
	if s.Terminal {
		n = 0
		for lines := otherLines; n < len(parts); n++ {
			lines += strings.Count(parts[n], "\n")
			more := 0
			if left := len(parts) - n - 1; left > 0 {
				more = strings.Count(rest(left), "\n")
			}
			if n > 0 && lines+more > ScreenLines {
				break
			}
		}
	}
	text := strings.Join(parts[:n], "")
	if n < len(parts) {
		text += rest(len(parts) - n)
	}
	return text
}
