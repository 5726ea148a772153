// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodemount has the processors about mounts of a node that no pod needs. Package internal/faults/nodemount judges them.
package nodemount

import (
	"context"
	"fmt"

	"kubediag.org/kubediag/internal/faults/nodemount"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/mountstate"
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
	// Mounts looks at the mounts of the kubelet and at the mount namespaces of the machine, for those that cannot be judged. Nil: another processor does.
	Mounts mountstate.Inspector
}

// Name is nodeMountDiagnoser.
func (*Diagnoser) Name() string { return "nodeMountDiagnoser" }

// Run gives the faults, and the parts of the node that no look judges. It is not applicable if there are no faults.
func (d *Diagnoser) Run(ctx context.Context, _ processor.Request) (processor.Result, error) {
	if d.Mounts != nil {
		ctx = kubelet.InOnePass(ctx)
	}
	node, err := d.Inspector.Kubelet.Node(ctx)
	if err != nil {
		return processor.Result{}, err
	}
	e, err := d.Inspector.Look(ctx)
	if err != nil {
		return processor.Result{}, err
	}
	survey := e.Judge(&node.Layout, nil)
	if d.Mounts != nil {
		found, err := d.Mounts.Look(ctx, mountstate.Scope{})
		if err != nil {
			return processor.Result{}, err
		}
		survey.Mounts, survey.Coverage.Namespaces = found.Mounts, found.Coverage.Namespaces
		searches.AddUncounted(&survey)
	}
	result := processor.Result{Findings: survey.Findings, Unjudged: survey.Unknown.Sentences(), LeftOver: survey.LeftOver}
	if len(survey.Findings) == 0 {
		result.NotApplicable = fmt.Sprintf("no mount of the kubelet's mount namespace is one too many: it has %d", e.Mounts)
		return result, nil
	}
	var results []string
	for _, f := range survey.Findings {
		results = append(results, f.Evidence[0])
	}
	result.Values, err = processor.SentenceValues(keyPlace, keyPlaces, results)
	return result, err
}
