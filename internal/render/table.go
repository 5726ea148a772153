// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"strings"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/printable"
)

// Row is a row of a table.
type Row struct {
	Cells  []string
	Colour terminal.Colour // of the cell that is painted
	Below  string          // a sentence
}

// Table is a table of faults.
type Table struct {
	// Rows begin with the head.
	Rows []Row
	// Painted is the column that has the colour of its row. Subject is the first column that can be cut.
	Painted, Subject int
	// Numbered is whether the first column has the numbers of the rows.
	Numbered bool
}

// Bounds of a table, in columns of the screen.
const (
	narrowTable = 60 // below it a row takes several lines
	leastColumn = 8  // no column is cut to less
)

// Text is the table at the width of a screen. Columns are cut to fit, and the sentences below the rows are indented.
func (t Table) Text(s terminal.Screen) string {
	var b strings.Builder
	if s.Width > 0 && s.Width < narrowTable {
		for _, row := range t.Rows[1:] {
			head := strings.Join(row.Cells[t.Painted:t.Subject], ", ")
			if t.Painted > 0 {
				head = strings.Join(row.Cells[:t.Painted], " ") + ", " + head
			}
			b.WriteString(s.Wrap("", printable.Quoted(head), 2))
			b.WriteString("  " + s.Cut(row.Cells[t.Subject], s.Width-2) + "\n" + row.below(s, 2))
		}
		return b.String()
	}
	widths := t.widths(s.Width)
	indent := 4
	if t.Numbered {
		indent += widths[0]
	}
	for i, row := range t.Rows {
		var line strings.Builder
		for j, cell := range row.Cells {
			cell = terminal.Pad(s.Cut(cell, widths[j]), widths[j])
			if j == t.Painted {
				cell = s.Paint(row.Colour, cell)
			}
			line.WriteString(cell + "  ")
		}
		text := strings.TrimRight(line.String(), " ")
		if i == 0 {
			b.WriteString(s.Paint(terminal.Dim, text) + "\n")
			continue
		}
		b.WriteString(text + "\n" + row.below(s, indent))
	}
	return b.String()
}

// below is the sentence below the row, if there is one.
func (r Row) below(s terminal.Screen, indent int) string {
	if r.Below == "" {
		return ""
	}
	return s.Wrap(strings.Repeat(" ", indent), r.Below, indent)
}

// widths are those of the columns. The widest of those that can be cut is cut until a line fits. 0: any line fits.
func (t Table) widths(columns int) []int {
	widths := make([]int, len(t.Rows[0].Cells))
	for _, row := range t.Rows {
		for i, cell := range row.Cells {
			widths[i] = max(widths[i], terminal.Columns(cell))
		}
	}
	for columns > 0 {
		sum, widest := -2, t.Subject
		for i, w := range widths {
			sum += w + 2
			if i >= t.Subject && w > widths[widest] {
				widest = i
			}
		}
		if sum <= columns || widths[widest] <= leastColumn {
			break
		}
		widths[widest]--
	}
	return widths
}
