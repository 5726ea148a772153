// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package operationset

import (
	"strings"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/graph"
)

func graphNodes(list []v1.Node) []graph.Node {
	all := make([]graph.Node, len(list))
	for i, n := range list {
		all[i] = graph.Node{ID: n.ID, To: n.To, Operation: n.Operation}
	}
	return all
}

// graphMessage lists the problems of a graph in one line.
func graphMessage(err error) string {
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// listedPaths are the first paths for the status: as many as are worth showing, and as fit an object that the API
// server takes. A path of the largest set can have a thousand nodes.
func listedPaths(g *graph.Graph, list []v1.Node) []v1.Path {
	byID := map[int32]v1.Node{}
	for i, n := range g.Nodes() {
		named := list[i]
		named.ID = n.ID
		byID[n.ID] = named
	}
	var paths []v1.Path
	size := 0
	for _, ids := range g.Paths(v1.MaxListedPaths) {
		path := make(v1.Path, len(ids))
		for i, id := range ids {
			path[i] = byID[id]
			size += jsonSize(path[i])
		}
		if size > v1.MaxPathsBytes {
			break
		}
		paths = append(paths, path)
	}
	return paths
}

// jsonSize is about how many bytes a node takes as JSON.
func jsonSize(n v1.Node) int {
	const id, names = 5, 40
	return names + len(n.Operation) + id*(1+len(n.To)+len(n.Dependences))
}
