// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// command is a line to paste: a verb of this program with its arguments, and the flags by which this call found the cluster.
func (c *client) command(args ...string) string {
	words := []string{Name}
	for _, arg := range append(args, c.flags...) {
		words = append(words, fault.Quote(arg))
	}
	return strings.Join(words, " ")
}

// kubectl is a line to paste that calls kubectl itself.
func (c *client) kubectl(args ...string) string {
	return "kubectl" + strings.TrimPrefix(c.command(args...), Name)
}

// hint is a line to paste and what it does.
type hint struct{ line, purpose string }

// hints are lines to paste, each with its purpose behind it, or above it if that does not fit.
func hints(s terminal.Screen, list []hint) string {
	var b strings.Builder
	column := 0
	for _, h := range list {
		column = max(column, terminal.Columns(h.line))
	}
	for _, h := range list {
		purpose := printable.Quoted(h.purpose)
		if s.Width > 0 && 2+column+4+terminal.Columns(purpose) > s.Width {
			b.WriteString(s.Wrap("  # ", purpose, 4) + "  " + h.line + "\n")
			continue
		}
		b.WriteString("  " + terminal.Pad(h.line, column) + "  " + s.Paint(terminal.Dim, "# "+purpose) + "\n")
	}
	return b.String()
}

// marked is a text behind a mark in colour.
func marked(s terminal.Screen, mark string, c terminal.Colour, text string) string {
	lines := s.Wrap(mark+" ", printable.Quoted(text), 2)
	return s.Paint(c, mark) + strings.TrimPrefix(lines, mark)
}
