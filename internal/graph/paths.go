// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"math"
	"slices"
)

// add saturates.
func add(a, b int32) int32 {
	return int32(min(int64(a)+int64(b), math.MaxInt32))
}

// PathCount is how many paths the graph has, 2147483647 where there are more.
func (g *Graph) PathCount() int32 {
	var all int32
	for _, s := range g.sinks {
		all = add(all, g.counts[s])
	}
	return all
}

// Paths lists the first paths, limit at most, as ids without node 0.
func (g *Graph) Paths(limit int) [][]int32 {
	var paths [][]int32
	var trail []int // from a sink backwards
	var back func(i int)
	back = func(i int) {
		if i == g.source() {
			paths = append(paths, g.path(trail))
			return
		}
		trail = append(trail, i)
		for _, b := range g.before[i] {
			if len(paths) >= limit {
				break
			}
			back(b)
		}
		trail = trail[:len(trail)-1]
	}
	for _, s := range g.sinks {
		if len(paths) >= limit {
			break
		}
		back(s)
	}
	return paths
}

// path turns a way back from a sink round.
func (g *Graph) path(trail []int) []int32 {
	ids := make([]int32, 0, len(trail))
	for _, i := range slices.Backward(trail) {
		ids = append(ids, g.nodes[i].ID)
	}
	return ids
}

// PathIndex is the index of a path in the order of Paths, 2147483647 where it is larger, -1 where it is no path of the graph.
func (g *Graph) PathIndex(path []int32) int32 {
	if len(path) == 0 || slices.ContainsFunc(path, func(id int32) bool { return !g.has(id) || id == 0 }) {
		return -1
	}
	at := slices.Index(g.sinks, g.at[path[len(path)-1]])
	if at < 0 {
		return -1
	}
	rank := int32(0)
	for _, s := range g.sinks[:at] {
		rank = add(rank, g.counts[s])
	}
	for k := len(path) - 1; k >= 0; k-- {
		from := g.source()
		if k > 0 {
			from = g.at[path[k-1]]
		}
		before := g.before[g.at[path[k]]]
		at, ok := slices.BinarySearch(before, from)
		if !ok {
			return -1
		}
		for _, b := range before[:at] {
			rank = add(rank, g.counts[b])
		}
	}
	return rank
}

// Next is the first path, in the order of Paths, on which no node has failed. It takes one pass over the graph, however
// many paths there are.
func (g *Graph) Next(failed func(id int32) bool) (path []int32, ok bool) {
	open := make([]bool, len(g.nodes)) // whether a path without a failed node leads here
	open[g.source()] = true
	first := func(candidates []int) int {
		at := slices.IndexFunc(candidates, func(i int) bool { return open[i] })
		if at < 0 {
			return -1
		}
		return candidates[at]
	}
	for _, i := range g.walk {
		open[i] = open[i] || first(g.before[i]) >= 0 && !failed(g.nodes[i].ID)
	}
	var trail []int
	for i := first(g.sinks); i >= 0 && i != g.source(); i = first(g.before[i]) {
		trail = append(trail, i)
	}
	return g.path(trail), len(trail) > 0
}
