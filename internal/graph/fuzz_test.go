// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/test/growthtest"
)

// decode makes a small graph of bytes: the number of nodes, then for each its id and a bit for each edge.
func decode(data []byte) []Node {
	next := func() int32 {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int32(b)
	}
	nodes := make([]Node, next()%9)
	permuted := next()%2 == 1
	for i := range nodes {
		nodes[i].ID = int32(i)
		if permuted {
			nodes[i].ID = next()%9 - 1
		}
		for edges, to := next(), int32(0); edges > 0; edges, to = edges>>1, to+1 {
			if edges&1 == 1 {
				nodes[i].To = append(nodes[i].To, to)
			}
		}
		if next()%2 == 1 {
			slices.Reverse(nodes[i].To)
		}
		if nodes[i].ID != 0 {
			nodes[i].Operation = "op"
		}
	}
	return nodes
}

// simplePaths lists every way from node 0 to a node without successors, in any order, and says whether there is a cycle
// on one of them.
func simplePaths(nodes []Node) (paths [][]int32, cycle bool) {
	byID := map[int32]Node{}
	for _, n := range nodes {
		byID[n.ID] = n
	}
	var walk func(trail []int32, id int32)
	walk = func(trail []int32, id int32) {
		if slices.Contains(trail, id) {
			cycle = true
			return
		}
		trail = append(slices.Clone(trail), id)
		for _, to := range byID[id].To {
			walk(trail, to)
		}
		if len(byID[id].To) == 0 {
			paths = append(paths, trail[1:])
		}
	}
	walk(nil, 0)
	return paths, cycle
}

// ordered sorts paths by the definition of the order, spelled out: sinks by the given list, then backwards by position.
func ordered(nodes []Node, paths [][]int32, sinks []int32) {
	position := map[int32]int{}
	for i, n := range nodes {
		position[n.ID] = i
	}
	slices.SortFunc(paths, func(a, b []int32) int {
		if s := slices.Index(sinks, a[len(a)-1]) - slices.Index(sinks, b[len(b)-1]); s != 0 {
			return s
		}
		for i := 2; ; i++ {
			from := func(p []int32) int {
				if i > len(p) {
					return position[0]
				}
				return position[p[len(p)-i]]
			}
			if x, y := from(a), from(b); x != y {
				return x - y
			}
		}
	})
}

// kahnSinks is the order of the sinks, by repeated search instead of counters.
func kahnSinks(nodes []Node) []int32 {
	byID := map[int32]Node{}
	for _, n := range nodes {
		byID[n.ID] = n
	}
	var done, queue, sinks []int32
	for queue = []int32{0}; len(queue) > 0; queue = queue[1:] {
		at := byID[queue[0]]
		done = append(done, at.ID)
		if len(at.To) == 0 {
			sinks = append(sinks, at.ID)
		}
		for _, to := range at.To {
			ready := !slices.ContainsFunc(nodes, func(n Node) bool {
				return slices.Contains(n.To, to) && !slices.Contains(done, n.ID)
			})
			if ready && !slices.Contains(queue, to) {
				queue = append(queue, to)
			}
		}
	}
	return sinks
}

func FuzzGraph(f *testing.F) {
	f.Add([]byte{5, 0, 0x02, 0, 0x04, 0, 0x08, 0, 0x10, 0, 0, 0}, uint16(0))
	f.Add([]byte{6, 0, 0x06, 1, 0x18, 0, 0x18, 1, 0x20, 0, 0x20, 0, 0, 0}, uint16(0x12))
	f.Add([]byte{3, 1, 3, 0, 0, 1, 6, 0, 2, 8, 0}, uint16(1))
	f.Add([]byte{3, 0, 2, 0, 4, 0, 2, 0}, uint16(0))
	f.Fuzz(func(t *testing.T, data []byte, fails uint16) {
		nodes := decode(data)
		g, err := New(nodes)
		if err != nil {
			return
		}
		want, cycle := simplePaths(g.Nodes())
		if cycle {
			t.Fatalf("a cycle was accepted: %v", nodes)
		}
		ordered(g.Nodes(), want, kahnSinks(g.Nodes()))
		if diff := cmp.Diff(want, g.Paths(math.MaxInt)); diff != "" {
			t.Fatalf("paths of %v (-want +got):\n%s", nodes, diff)
		}
		if int(g.PathCount()) != len(want) {
			t.Fatalf("count %d, want %d", g.PathCount(), len(want))
		}
		checkPathIndexes(t, g)
		checkNext(t, g, want, func(id int32) bool { return fails>>id&1 == 1 })
	})
}

// checkNext compares Next with a search of the list of all paths.
func checkNext(t *testing.T, g *Graph, paths [][]int32, failed func(int32) bool) {
	t.Helper()
	at := slices.IndexFunc(paths, func(p []int32) bool { return !slices.ContainsFunc(p, failed) })
	got, ok := g.Next(failed)
	if ok != (at >= 0) || ok && !slices.Equal(got, paths[at]) {
		t.Fatalf("next is %v, %v, want path %d of %v", got, ok, at, paths)
	}
}

// FuzzGraphGrows holds that no graph within the bounds makes work that grows with the square of its nodes and edges: a chain, a fan, layers, cycles, and
// edges that are listed twice. shape says which edges each node has.
func FuzzGraphGrows(f *testing.F) {
	for _, shape := range [][]byte{{1}, {1, 2}, {1, 1}, {0}, {255}, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {2}, {1, 254}} {
		for _, fan := range []uint16{0, 1, 9} {
			f.Add(shape, fan)
		}
	}
	f.Fuzz(func(t *testing.T, shape []byte, fan uint16) {
		growthtest.Check(t, MaxNodes/4, func(n int) func() {
			nodes := make([]Node, n)
			for i := range nodes {
				nodes[i] = Node{ID: int32(i), Operation: "o"}
				for _, by := range shape[:min(len(shape), 9)] {
					nodes[i].To = append(nodes[i].To, int32(i)+int32(int8(by)))
				}
			}
			nodes[0].Operation = ""
			for i := range int(fan) * n {
				nodes[0].To = append(nodes[0].To, int32(1+i%n))
			}
			return func() {
				g, err := New(nodes)
				if err != nil {
					return
				}
				paths := g.Paths(100)
				for _, p := range paths {
					g.PathIndex(p)
				}
				g.Next(func(id int32) bool { return id%3 == 1 })
				g.Hash()
			}
		})
	})
}
