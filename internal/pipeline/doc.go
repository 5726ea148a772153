// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package pipeline runs the operations of a graph for one Diagnosis: in order, each at most once with success, with time
// limits, retries, bounded results and a journal from which a run that was killed goes on.
//
// It owns what no processor has to think of. A panic is a failure. A processor that does not return when its time is up
// is left behind, counted, and not tried again, for it may still be at work. The journal on the disk holds a
// recoverer's plan before it is carried out. A plan that was written is resumed, and never made again.
//
// A result is passed on to the operations that follow, and rules none of them: parameters and context keys stay what the
// job says, whatever an operation answers, and a parameter that its operation does not know is refused before anything is
// done.
//
// It knows no Kubernetes, no network and no mount: those are behind the contract of package processor. Ended operations
// are remembered by node, so the work is bounded by the nodes of the graph, however many paths it has.
package pipeline
