// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/printable"
)

// Step is an operation in the graph of an OperationSet, and how it went.
type Step struct {
	ID    int32
	Name  string
	State State
	// Result is a word of Language.Word.
	Result string
	// To are the steps that may follow, and Taken those of them that the path led to.
	To, Taken []int32
}

// maxSteps bounds the steps of a drawing. A graph with more of them is not drawn.
const maxSteps = 60

// Sizes of the drawing of a graph, in its own units.
const (
	stepWidth    = 232
	stepHeight   = 52
	stepDistance = 40
	stepColumn   = 22 // characters of a name in a line
)

// edge leads from a step to one that may follow.
type edge struct {
	X, Y, ToX, ToY int
	Taken          bool
}

// drawSteps lays out a graph in rows: a step is below all that lead to it.
func (l Language) drawSteps(steps []Step) drawing {
	row, used, place := map[int32]int{}, map[int]int{}, map[int32]box{}
	for range steps { // at most as many rows as steps, as the graph has no cycle
		for _, s := range steps {
			for _, to := range s.To {
				row[to] = max(row[to], row[s.ID]+1)
			}
		}
	}
	var d drawing
	for _, s := range steps {
		b := box{State: s.State, X: 1 + used[row[s.ID]]*(stepWidth+stepDistance), Y: 1 + row[s.ID]*(stepHeight+stepDistance), Right: stepWidth, Height: stepHeight}
		used[row[s.ID]]++
		b.MarkX, b.Mark = b.X+18, b.Y+stepHeight/2
		name := printable.ClipMiddle(printable.Quoted(s.Name), stepColumn)
		b.Lines = []textLine{{b.X + 36, b.Y + 22, name}, {b.X + 36, b.Y + 40, l.Word(s.Result)}}
		place[s.ID] = b
		d.Boxes = append(d.Boxes, b)
		d.Width, d.Height = max(d.Width, b.X+b.Right+1), max(d.Height, b.Y+b.Height+1)
		d.Words += strconv.Itoa(int(s.ID)) + " " + s.Name + ": " + l.Word(s.Result) + "; "
	}
	for _, s := range steps {
		for _, to := range s.To {
			from, next := place[s.ID], place[to]
			d.Edges = append(d.Edges, edge{from.X + stepWidth/2, from.Y + stepHeight, next.X + stepWidth/2, next.Y, slices.Contains(s.Taken, to)})
		}
	}
	slices.SortStableFunc(d.Edges, func(a, b edge) int { return cmp.Compare(taken(a), taken(b)) }) // the path lies above
	d.Words = strings.TrimSuffix(d.Words, "; ")
	return d
}

func taken(e edge) int {
	if e.Taken {
		return 1
	}
	return 0
}

// CanDraw reports whether a graph is small enough for a drawing.
func CanDraw(steps []Step) bool { return len(steps) > 0 && len(steps) <= maxSteps }
