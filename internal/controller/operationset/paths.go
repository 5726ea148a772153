// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package operationset

import (
	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/graph"
)

// listedPaths returns the first paths for the status, within the bounds of their number and of their size: the API server limits an object. A path of the largest set can have a thousand nodes.
func listedPaths(g *graph.Graph, list []v1.Node) []v1.Path {
	byID := map[int32]v1.Node{}
	for i, n := range g.Nodes() {
		named := list[i]
		named.ID = n.ID
		byID[n.ID] = named
	}
	const idBytes, nameBytes = 5, 40 // of an identifier, and of the names of the fields of a node, as JSON
	var paths []v1.Path
	size := 0
	for _, ids := range g.Paths(v1.MaxListedPaths) {
		path := make(v1.Path, len(ids))
		for i, id := range ids {
			path[i] = byID[id]
			size += nameBytes + len(path[i].Operation) + idBytes*(1+len(path[i].To)+len(path[i].Dependences))
		}
		if size > v1.MaxPathsBytes {
			break
		}
		paths = append(paths, path)
	}
	return paths
}
