// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodemount has the processors about mounts of a node that no pod needs. Package internal/faults/nodemount judges them.
package nodemount

import (
	"context"
	"fmt"

	"kubediag.org/kubediag/internal/faults/nodemount"
	"kubediag.org/kubediag/internal/processor"
)

// Keys of the results. Those that hold one of several hold the first.
const (
	keyPlace  = "diagnoser.kubernetes.node_mount.result"
	keyPlaces = "diagnoser.kubernetes.node_mount.results"
)

// Diagnoser is the processor nodeMountDiagnoser.
//
// It looks for places of the kubelet at which the same thing is mounted many times, for staging paths that no pod has, and compares the
// number of mounts with fs.mount-max. It changes nothing.
type Diagnoser struct {
	Inspector *nodemount.Inspector
}

// Name is nodeMountDiagnoser.
func (*Diagnoser) Name() string { return "nodeMountDiagnoser" }

// Run gives the faults. It is not applicable if there are none.
func (d *Diagnoser) Run(ctx context.Context, _ processor.Request) (processor.Result, error) {
	node, err := d.Inspector.Kubelet.Node(ctx)
	if err != nil {
		return processor.Result{}, err
	}
	e, err := d.Inspector.Look(ctx)
	if err != nil {
		return processor.Result{}, err
	}
	survey := e.Judge(&node.Layout, nil)
	if len(survey.Findings) == 0 {
		return processor.Result{NotApplicable: fmt.Sprintf("no mount of the kubelet's mount namespace is one too many: it has %d", e.Mounts)}, nil
	}
	var results []string
	for _, f := range survey.Findings {
		results = append(results, f.Evidence[0])
	}
	values, err := processor.SentenceValues(keyPlace, keyPlaces, results)
	return processor.Result{Values: values, Findings: survey.Findings, Unjudged: survey.Unknown.Sentences()}, err
}
