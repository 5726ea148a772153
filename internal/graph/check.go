// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"fmt"
	"slices"
	"strings"
)

// maxProblems is how many problems an error lists, maxCycle how many nodes of a cycle it names.
const (
	maxProblems = 10
	maxCycle    = 20
)

// orderError is one thing that is wrong with a list of nodes.
type orderError struct {
	// Index is the position of the node in the list, -1 where the list as a whole is wrong.
	Index int
	// Field is id, operation, to or to[n]; empty if the node or the list as a whole is wrong.
	Field string
	// Value is the value of the field.
	Value any
	// Problem says why the value is refused.
	Problem string
}

// Error names the field in full, the value and the problem.
func (e *orderError) Error() string {
	at := "adjacencyList"
	if e.Index >= 0 {
		at += fmt.Sprintf("[%d]", e.Index)
	}
	if e.Field != "" {
		at += "." + e.Field
	}
	if text, ok := e.Value.(string); ok {
		return fmt.Sprintf("%s: %q: %s", at, text, e.Problem)
	}
	return fmt.Sprintf("%s: %v: %s", at, e.Value, e.Problem)
}

func (g *Graph) checkSize() []*orderError {
	nodes, edges := len(g.nodes), 0
	for _, n := range g.nodes {
		edges += len(n.To)
	}
	switch {
	case nodes < 2:
		return []*orderError{{-1, "", nodes, "must have at least 2 nodes: node 0 runs nothing"}}
	case nodes > MaxNodes:
		return []*orderError{{-1, "", nodes, fmt.Sprintf("must have at most %d nodes", MaxNodes)}}
	case edges > maxEdges:
		return []*orderError{{-1, "", edges, fmt.Sprintf("must have at most %d edges in all", maxEdges)}}
	}
	return nil
}

// checkNodes checks ids and operations and fills in at.
func (g *Graph) checkNodes() []*orderError {
	var problems []*orderError
	g.at = slices.Repeat([]int{-1}, len(g.nodes))
	for i, n := range g.nodes {
		switch {
		case !g.has(n.ID):
			problems = append(problems, &orderError{i, "id", n.ID, fmt.Sprintf("must be between 0 and %d", len(g.nodes)-1)})
			continue
		case g.at[n.ID] >= 0:
			problems = append(problems, &orderError{i, "id", n.ID, fmt.Sprintf("is also that of adjacencyList[%d]", g.at[n.ID])})
			continue
		}
		g.at[n.ID] = i
		switch {
		case n.ID == 0 && n.Operation != "":
			problems = append(problems, &orderError{i, "operation", n.Operation, "must be empty: node 0 runs nothing"})
		case n.ID != 0 && n.Operation == "":
			problems = append(problems, &orderError{i, "operation", "", fmt.Sprintf("must be set: node %d is not node 0", n.ID)})
		}
	}
	return problems
}

// checkEdges checks each edge by itself and fills in before.
func (g *Graph) checkEdges() []*orderError {
	var problems []*orderError
	g.before = make([][]int, len(g.nodes))
	last := slices.Repeat([]int{-1}, len(g.nodes)) // the node from which an edge to the node of an id came last
	for i, n := range g.nodes {
		for j, id := range n.To {
			problem := ""
			switch {
			case !g.has(id):
				problem = "there is no node of this id"
			case id == n.ID:
				problem = "leads to the node itself"
			case id == 0:
				problem = "leads back to node 0"
			case last[id] == i:
				problem = "is listed twice"
			}
			if g.has(id) {
				last[id] = i
			}
			if problem != "" {
				problems = append(problems, &orderError{i, fmt.Sprintf("to[%d]", j), id, problem})
				continue
			}
			g.before[g.at[id]] = append(g.before[g.at[id]], i)
		}
	}
	return problems
}

func (g *Graph) has(id int32) bool { return id >= 0 && int(id) < len(g.nodes) }

// checkReach finds the nodes that no path from node 0 leads to.
func (g *Graph) checkReach() []*orderError {
	reached := make([]bool, len(g.nodes))
	reached[g.source()] = true
	for _, i := range g.walk {
		for _, id := range g.nodes[i].To {
			reached[g.at[id]] = reached[g.at[id]] || reached[i]
		}
	}
	var problems []*orderError
	for i, n := range g.nodes {
		if !reached[i] {
			problems = append(problems, &orderError{i, "id", n.ID, "is not reached from node 0"})
		}
	}
	return problems
}

// cycle names the nodes of one cycle, given how many predecessors each node still waited for when the walk ended.
// A node that waits has a predecessor that waits, so going backwards along these must come round.
func (g *Graph) cycle(waiting []int) *orderError {
	var trail []int
	i := slices.IndexFunc(waiting, func(n int) bool { return n > 0 })
	seen := map[int]int{}
	for {
		if from, ok := seen[i]; ok {
			trail = trail[from:]
			break
		}
		seen[i] = len(trail)
		trail = append(trail, i)
		back := slices.IndexFunc(g.before[i], func(b int) bool { return waiting[b] > 0 })
		i = g.before[i][back]
	}
	slices.Reverse(trail)
	least := slices.Index(trail, slices.Min(trail))
	trail = slices.Concat(trail[least:], trail[:least])
	var ids []string
	for _, i := range trail[:min(len(trail), maxCycle)] {
		ids = append(ids, fmt.Sprint(g.nodes[i].ID))
	}
	if len(trail) > maxCycle {
		ids = append(ids, "...")
	}
	ids = append(ids, ids[0])
	return &orderError{trail[0], "to", strings.Join(ids, " -> "), fmt.Sprintf("is a cycle of %d nodes", len(trail))}
}
