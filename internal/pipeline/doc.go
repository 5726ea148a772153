// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package pipeline runs a Diagnosis on this node: it reads the OperationSet and its Operations, runs the operations in
// order, each at most once with success, and writes down in the status how each went. A Store stands for the API server,
// or for memory where there is none.
//
// It owns the work that no processor has to think of. A panic is a failure. A processor that does not return when its time is up
// is left behind, counted, and not tried again, for it may still be at work. The journal on the disk holds a
// recoverer's plan before it is carried out. A plan that was written is resumed, and never made again. So a Diagnosis can
// be given to Run again after anything that may happen.
//
// A status is written when a Diagnosis is accepted, before something is repaired, and at the end; not more often.
//
// A result is passed on to the operations that follow, and rules none of them: parameters and context keys stay as the
// Diagnosis has them, and no answer of an operation changes them. A parameter that its operation does not know is refused
// before anything is done.
//
// It uses the API's types and knows no client, no network and no mount: those are behind Store and the contract of package
// processor. Ended operations are remembered by node, so the work is bounded by the nodes of the graph, however many paths
// it has.
package pipeline
