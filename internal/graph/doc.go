// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package graph checks the graph of an OperationSet and knows the order in which its paths are tried. It runs nothing, and
// the time of each call grows with the size of the graph and of the answer: the number of paths, which grows exponentially,
// is only ever counted.
//
// The order is KubeDiag's. A path leads from a successor of node 0 to a sink. The sinks come in the order in which a
// breadth-first walk meets them. It enters a node after all its predecessors (Kahn's) and follows edges as they are
// listed. The paths to one sink are grouped by the node before the sink, in the order of the list, and so on backwards.
package graph
