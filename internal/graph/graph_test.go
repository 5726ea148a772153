// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// list makes nodes of edges: list({1, 2}, {3}, {3}, {}) has 0 -> 1, 0 -> 2, 1 -> 3 and 2 -> 3.
func list(to ...[]int32) []Node {
	nodes := make([]Node, len(to))
	for i := range to {
		nodes[i] = Node{ID: int32(i), To: to[i]}
		if i > 0 {
			nodes[i].Operation = fmt.Sprintf("op-%d", i)
		}
	}
	return nodes
}

// ladder has one node and then rungs of two, each node of a rung leading to both of the next: 2 to the power of rungs
// paths.
func ladder(rungs int) []Node {
	to := [][]int32{{1, 2}}
	for r := range rungs {
		next := []int32{int32(2*r + 3), int32(2*r + 4)}
		if r == rungs-1 {
			next = nil
		}
		to = append(to, next, next)
	}
	return list(to...)
}

func mustNew(t testing.TB, nodes []Node) *Graph {
	t.Helper()
	g, err := New(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestPathOrder(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		nodes []Node
		want  [][]int32
	}{
		"walkthrough": {list([]int32{1}, []int32{2}, []int32{3}, []int32{4}, nil), [][]int32{{1, 2, 3, 4}}},
		"sinks come as the walk meets them": {
			list([]int32{2, 1}, nil, nil), [][]int32{{2}, {1}},
		},
		"a sink that waits for a far predecessor comes late": {
			list([]int32{1, 2}, []int32{3}, nil, []int32{4}, nil), [][]int32{{2}, {1, 3, 4}},
		},
		"a near sink with a far predecessor is met after a far sink": {
			list([]int32{1, 2}, []int32{3, 4}, []int32{5}, []int32{5}, nil, nil), [][]int32{{1, 4}, {2, 5}, {1, 3, 5}},
		},
		"paths to one sink are grouped by the last node, in the order of the list": {
			list([]int32{2, 1}, []int32{3, 4}, []int32{4, 3}, []int32{5}, []int32{5}, nil),
			[][]int32{{1, 3, 5}, {2, 3, 5}, {1, 4, 5}, {2, 4, 5}},
		},
		"an edge over a node": {list([]int32{1, 2}, []int32{2}, nil), [][]int32{{2}, {1, 2}}},
		"ids of their own": {
			[]Node{{ID: 2, Operation: "b"}, {ID: 0, To: []int32{1, 2}}, {ID: 1, Operation: "a", To: []int32{2}}},
			[][]int32{{2}, {1, 2}},
		},
		"no ids": {
			[]Node{{To: []int32{1}}, {Operation: "a", To: []int32{2}}, {Operation: "b"}}, [][]int32{{1, 2}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := mustNew(t, test.nodes)
			if diff := cmp.Diff(test.want, g.Paths(100)); diff != "" {
				t.Errorf("paths (-want +got):\n%s", diff)
			}
			if got := g.PathCount(); int(got) != len(test.want) {
				t.Errorf("count %d, want %d", got, len(test.want))
			}
			checkPathIndexes(t, g)
		})
	}
}

// checkPathIndexes compares PathIndex and the limit of Paths with the list of all paths.
func checkPathIndexes(t *testing.T, g *Graph) {
	t.Helper()
	all := g.Paths(math.MaxInt)
	for i, p := range all {
		if index := g.PathIndex(p); int(index) != i {
			t.Errorf("index of %v is %d, want %d", p, index, i)
		}
		if diff := cmp.Diff(all[:i], g.Paths(i), cmp.Transformer("len", func(p [][]int32) int { return len(p) })); diff != "" {
			t.Errorf("first %d paths (-want +got):\n%s", i, diff)
		}
	}
}

func TestPathIndexOfNoPath(t *testing.T) {
	t.Parallel()
	g := mustNew(t, list([]int32{1, 2}, []int32{3}, []int32{3}, nil))
	for _, path := range [][]int32{nil, {}, {1}, {3}, {2, 1, 3}, {0, 1, 3}, {1, 3, 3}, {-1}, {99}, {99, 3}} {
		if index := g.PathIndex(path); index != -1 {
			t.Errorf("index of %v is %d, want -1", path, index)
		}
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		nodes []Node
		want  orderError
	}{
		"nil":             {nil, orderError{-1, "", 0, "must have at least 2 nodes: node 0 runs nothing"}},
		"one node":        {list(nil), orderError{-1, "", 1, "must have at least 2 nodes: node 0 runs nothing"}},
		"10,000 nodes":    {make([]Node, 10000), orderError{-1, "", 10000, "must have at most 1000 nodes"}},
		"10,001 edges":    {list(make([]int32, 10001), nil), orderError{-1, "", 10001, "must have at most 10000 edges in all"}},
		"negative id":     {[]Node{{To: []int32{1}}, {ID: -1, Operation: "a"}}, orderError{1, "id", int32(-1), "must be between 0 and 1"}},
		"id out of range": {[]Node{{To: []int32{1}}, {ID: 2, Operation: "a"}}, orderError{1, "id", int32(2), "must be between 0 and 1"}},
		"least id":        {[]Node{{}, {ID: math.MinInt32}}, orderError{1, "id", int32(math.MinInt32), "must be between 0 and 1"}},
		"duplicate id": {
			[]Node{{To: []int32{1}}, {ID: 1, Operation: "a"}, {ID: 1, Operation: "b"}},
			orderError{2, "id", int32(1), "is also that of adjacencyList[1]"},
		},
		"node 0 runs something": {
			[]Node{{Operation: "a", To: []int32{1}}, {ID: 1, Operation: "b"}},
			orderError{0, "operation", "a", "must be empty: node 0 runs nothing"},
		},
		"node runs nothing": {
			[]Node{{To: []int32{1}}, {ID: 1}}, orderError{1, "operation", "", "must be set: node 1 is not node 0"},
		},
		"edge to nowhere":     {list([]int32{1, 2}, nil), orderError{0, "to[1]", int32(2), "there is no node of this id"}},
		"negative edge":       {list([]int32{-1, 1}, nil), orderError{0, "to[0]", int32(-1), "there is no node of this id"}},
		"edge to itself":      {list([]int32{1}, []int32{1}), orderError{1, "to[0]", int32(1), "leads to the node itself"}},
		"node 0 to itself":    {list([]int32{0}, nil), orderError{0, "to[0]", int32(0), "leads to the node itself"}},
		"edge back to node 0": {list([]int32{1}, []int32{0}), orderError{1, "to[0]", int32(0), "leads back to node 0"}},
		"edge twice":          {list([]int32{1, 1}, nil), orderError{0, "to[1]", int32(1), "is listed twice"}},
		"cycle": {
			list([]int32{1}, []int32{2}, []int32{3}, []int32{4, 1}, nil),
			orderError{1, "to", "1 -> 2 -> 3 -> 1", "is a cycle of 3 nodes"},
		},
		"cycle apart": {
			list([]int32{1}, nil, []int32{3}, []int32{2}), orderError{2, "to", "2 -> 3 -> 2", "is a cycle of 2 nodes"},
		},
		"node behind a cycle comes first": {
			list([]int32{2}, nil, []int32{3}, []int32{2, 1}), orderError{2, "to", "2 -> 3 -> 2", "is a cycle of 2 nodes"},
		},
		"not reached": {
			list([]int32{1}, nil, []int32{1}), orderError{2, "id", int32(2), "is not reached from node 0"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := New(test.nodes)
			var got *orderError
			if !errors.As(err, &got) {
				t.Fatalf("error %v, want an *Error", err)
			}
			if diff := cmp.Diff(&test.want, got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestErrorsAreBounded(t *testing.T) {
	t.Parallel()
	ring := make([][]int32, MaxNodes)
	for i := range ring {
		ring[i] = []int32{int32(i%(MaxNodes-1) + 1)}
	}
	astray := make([]int32, maxEdges)
	for i := range astray {
		astray[i] = 5000
	}
	for name, nodes := range map[string][]Node{"ring": list(ring...), "astray": list(astray, nil)} {
		_, err := New(nodes)
		if err == nil || len(err.Error()) > 1000 {
			t.Errorf("%s: error of %d bytes: %v", name, len(fmt.Sprint(err)), err)
		}
	}
	_, err := New(list(astray, nil))
	if !strings.Contains(err.Error(), "and 9990 more") {
		t.Errorf("error does not say how many more there are:\n%v", err)
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	_, err := New(list([]int32{1, 7}, []int32{1}))
	want := "adjacencyList[0].to[1]: 7: there is no node of this id\nadjacencyList[1].to[0]: 1: leads to the node itself"
	if err.Error() != want {
		t.Errorf("error\n%v\nwant\n%s", err, want)
	}
}

func TestHash(t *testing.T) {
	t.Parallel()
	base := list([]int32{1, 2}, []int32{3}, []int32{3}, nil)
	without := slices.Clone(base)
	for i := range without {
		without[i].ID = 0
	}
	without[3].To = []int32{}
	hash := mustNew(t, base).Hash()
	if got := mustNew(t, without).Hash(); got != hash {
		t.Errorf("hash %q without ids, %q with them", got, hash)
	}
	if hash != "692c09e3c8cb5d0738406c3073d0c94fe1898293" {
		t.Errorf("hash %q is not that of earlier builds", hash)
	}
	for name, other := range map[string][]Node{
		"order of edges": list([]int32{2, 1}, []int32{3}, []int32{3}, nil),
		"edge":           list([]int32{1, 2, 3}, []int32{3}, []int32{3}, nil),
	} {
		if mustNew(t, other).Hash() == hash {
			t.Errorf("%s: same hash", name)
		}
	}
	base[3].Operation = "other"
	if mustNew(t, base).Hash() == hash {
		t.Error("operation: same hash")
	}
}

func TestNextSkipsFailedNodes(t *testing.T) {
	t.Parallel()
	g := mustNew(t, list([]int32{1, 2}, []int32{3, 4}, []int32{4}, []int32{5}, []int32{5}, nil))
	for name, test := range map[string]struct {
		failed []int32
		want   []int32
	}{
		"none":          {nil, []int32{1, 3, 5}},
		"first":         {[]int32{1}, []int32{2, 4, 5}},
		"middle":        {[]int32{3}, []int32{1, 4, 5}},
		"two":           {[]int32{3, 1}, []int32{2, 4, 5}},
		"both middles":  {[]int32{3, 4}, nil},
		"sink":          {[]int32{5}, nil},
		"both firsts":   {[]int32{1, 2}, nil},
		"not on a path": {[]int32{99}, []int32{1, 3, 5}},
	} {
		path, ok := g.Next(func(id int32) bool { return slices.Contains(test.failed, id) })
		if ok != (test.want != nil) || !slices.Equal(path, test.want) {
			t.Errorf("%s: %v, %v, want %v", name, path, ok, test.want)
		}
	}
}

// A graph with more paths than there are atoms is as quick as any.
func TestManyPaths(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	g := mustNew(t, ladder(499))
	if got := g.PathCount(); got != math.MaxInt32 {
		t.Errorf("count %d, want it saturated", got)
	}
	if got := len(g.Paths(100)); got != 100 {
		t.Errorf("%d paths, want 100", got)
	}
	path, ok := g.Next(func(id int32) bool { return id == 997 })
	if !ok || path[len(path)-1] != 998 {
		t.Errorf("next ends in %v", path)
	}
	if index := g.PathIndex(path); index != math.MaxInt32 {
		t.Errorf("index %d, want it saturated", index)
	}
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("took %v", took)
	}
}

func TestLadderOf25NodesHas4096Paths(t *testing.T) {
	t.Parallel()
	g := mustNew(t, ladder(12))
	if len(g.Nodes()) != 25 || g.PathCount() != 4096 || len(g.Paths(math.MaxInt)) != 4096 {
		t.Errorf("%d nodes, %d paths, %d listed", len(g.Nodes()), g.PathCount(), len(g.Paths(math.MaxInt)))
	}
}

// BenchmarkLadder25 rules out all 4,096 paths, a node at a time.
func BenchmarkLadder25(b *testing.B) {
	nodes := ladder(12)
	for b.Loop() {
		g := mustNew(b, nodes)
		failed := make([]bool, len(nodes))
		for {
			path, ok := g.Next(func(id int32) bool { return failed[id] })
			if !ok {
				break
			}
			failed[path[0]] = true
		}
	}
}
