// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package graph checks the graph of an OperationSet and knows the order in which its paths are tried. It runs nothing,
// and nothing in it takes longer than the size of the graph and of what is asked for: the number of paths, which grows
// exponentially, is only ever counted.
//
// The order is KubeDiag's. A path leads from a successor of node 0 to a sink. The sinks come in the order in which a
// breadth-first walk meets them. It enters a node after all its predecessors (Kahn's) and follows edges as they are
// listed. The paths to one sink are grouped by the node before the sink, in the order of the list, and so on backwards.
package graph
