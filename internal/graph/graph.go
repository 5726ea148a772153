// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Most nodes and edges of a graph.
const (
	MaxNodes = 1000
	maxEdges = 10000
)

// Node is a node of a graph: its id, the ids of the nodes that follow it, and the name of its Operation.
type Node struct {
	ID        int32   `json:"id"`
	To        []int32 `json:"to,omitempty"`
	Operation string  `json:"operation,omitempty"`
}

// Graph is a directed acyclic graph in which every node is reached from node 0. It does not change and may be used by
// several goroutines at once.
//
// Inside, a node is its position in the list.
type Graph struct {
	nodes  []Node
	at     []int   // position by id
	before [][]int // predecessors, ascending
	walk   []int   // Kahn's order
	sinks  []int   // in the order of walk
	counts []int32 // paths from node 0 to the node, saturated
}

// New checks a list of nodes and makes a graph of it. If every id is 0, a node's id is its position. The error joins
// the first ten problems, each an *Error that names node, field and value.
func New(nodes []Node) (*Graph, error) {
	given := slices.ContainsFunc(nodes, func(n Node) bool { return n.ID != 0 })
	copied := make([]Node, len(nodes))
	for i, n := range nodes {
		if !given {
			n.ID = int32(i)
		}
		n.To = slices.Clone(n.To)
		copied[i] = n
	}
	g := &Graph{nodes: copied}
	for _, check := range []func() []*orderError{g.checkSize, g.checkNodes, g.checkEdges, g.sort, g.checkReach} {
		if problems := check(); len(problems) > 0 {
			var errs []error
			for _, p := range problems[:min(len(problems), maxProblems)] {
				errs = append(errs, p)
			}
			if more := len(problems) - maxProblems; more > 0 {
				errs = append(errs, fmt.Errorf("and %d more", more))
			}
			return nil, errors.Join(errs...)
		}
	}
	g.counts = make([]int32, len(g.nodes))
	g.counts[g.source()] = 1
	for _, i := range g.walk {
		for _, b := range g.before[i] {
			g.counts[i] = add(g.counts[i], g.counts[b])
		}
	}
	return g, nil
}

// Nodes is the list with every id filled in. The caller must not change it.
func (g *Graph) Nodes() []Node { return g.nodes }

// Node returns a node by its id, which must be that of one.
func (g *Graph) Node(id int32) Node { return g.nodes[g.at[id]] }

// Hash identifies the list with every id filled in: 40 hexadecimal digits.
func (g *Graph) Hash() string {
	text, err := json.Marshal(g.nodes)
	if err != nil {
		panic(err) // numbers and strings only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:20])
}

// sort fills in walk and sinks. A node that no walk enters lies on a cycle or behind one.
func (g *Graph) sort() []*orderError {
	waiting := make([]int, len(g.nodes))
	for i, before := range g.before {
		waiting[i] = len(before)
		if len(before) == 0 {
			g.walk = append(g.walk, i)
		}
	}
	for next := 0; next < len(g.walk); next++ {
		for _, id := range g.nodes[g.walk[next]].To {
			to := g.at[id]
			if waiting[to]--; waiting[to] == 0 {
				g.walk = append(g.walk, to)
			}
		}
	}
	if len(g.walk) < len(g.nodes) {
		return []*orderError{g.cycle(waiting)}
	}
	for _, i := range g.walk {
		if len(g.nodes[i].To) == 0 {
			g.sinks = append(g.sinks, i)
		}
	}
	return nil
}

// source is the position of node 0.
func (g *Graph) source() int { return g.at[0] }
