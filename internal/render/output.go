// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/lint"
	"kubediag.org/kubediag/internal/printable"
)

// JSON is a value and the end of a line, with no character that a terminal would act on.
func JSON(v any, indent string) (string, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return "", fmt.Errorf("write json: %w", err)
	}
	// The encoder escapes the first 32 characters alone.
	return printable.Text(b.String()), nil
}

// WriteJSON writes the report of a verb for programs.
func WriteJSON(w io.Writer, v any) error {
	text, err := JSON(v, "  ")
	if err != nil {
		return err
	}
	return verb.Write(w, text)
}

// Write writes the report of a verb for programs or, as text says it, for people.
func Write(w io.Writer, f verb.Format, report any, text func(terminal.Screen) string) error {
	if f == verb.JSON {
		return WriteJSON(w, report)
	}
	return verb.Write(w, text(terminal.New(w, os.Getenv)))
}

// Duration is a short time.
func Duration(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond || d <= 0:
		return fmt.Sprintf("%d ms", max(0, d.Milliseconds()))
	}
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// Milliseconds is a short time in a report.
func Milliseconds(n float64) string { return Duration(time.Duration(n * float64(time.Millisecond))) }

// Page is a text of lines, and of rows with a name before each value, for a screen.
type Page struct {
	Screen terminal.Screen
	text   strings.Builder
}

// Row adds a row, unless its value is empty.
func (p *Page) Row(indent int, name, value string) {
	if value != "" {
		p.text.WriteString(p.Screen.Wrap(fmt.Sprintf("%*s%-10s ", indent, "", name), printable.Quoted(value), indent+11))
	}
}

// Line adds a paragraph that is indented.
func (p *Page) Line(indent int, format string, args ...any) {
	p.text.WriteString(p.Screen.Wrap(strings.Repeat(" ", indent), printable.Quoted(fmt.Sprintf(format, args...)), indent))
}

// Paste adds a line that is not broken: a person copies it.
func (p *Page) Paste(indent int, line string) {
	p.text.WriteString(strings.Repeat(" ", indent) + printable.Quoted(line) + "\n")
}

// Blank adds an empty line.
func (p *Page) Blank() { p.text.WriteByte('\n') }

// Text adds a text that has its lines.
func (p *Page) Text(text string) { p.text.WriteString(text) }

// List adds as many parts of a list as fit a screen, beside the lines that are there and those that come below. noun is the name of a part.
func (p *Page) List(parts []string, below int, noun string) {
	p.Text(p.Screen.FitParts(parts, strings.Count(p.String(), "\n")+below, func(n int) string {
		return p.Screen.Wrap("", fmt.Sprintf("and %s more: pipe the output into less, or see -o json", verb.Count(n, noun)), 2) + "\n"
	}))
}

// String is the text.
func (p *Page) String() string { return p.text.String() }

// Risk is a finding of lint behind its place, with the change that cures it.
func Risk(s terminal.Screen, place string, f lint.Finding) string {
	p := &Page{Screen: s}
	p.Text(s.Wrap("", printable.Quoted(place+": "+f.Summary), 2) + s.Wrap("  Cure: ", printable.Quoted(f.Cure)+".", 4))
	if f.Patch != "" {
		p.Line(2, "Patch:")
		for line := range strings.Lines(f.Patch) {
			p.Paste(4, strings.TrimSuffix(line, "\n"))
		}
	}
	p.Blank()
	return p.String()
}
