// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"context"

	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/processor"
)

// keyList is that of the result.
const keyList = "collector.kubernetes.orphaned_pods.list"

// Collector is the processor orphanedPodCollector.
//
// It collects the directories of pods that are gone: their content, the mounts in them, and whether they may be
// removed. Package internal/faults/orphan judges them. It changes nothing.
type Collector struct {
	Inspector *orphan.Inspector
}

// Name is orphanedPodCollector.
func (*Collector) Name() string { return "orphanedPodCollector" }

// Run lists them by UID, those of which nothing is proven included. It is not applicable if none is proven to be
// orphaned.
func (c *Collector) Run(ctx context.Context, _ processor.Request) (processor.Result, error) {
	s, err := c.Inspector.Survey(ctx)
	if err != nil {
		return processor.Result{}, err
	}
	result := processor.Result{Values: map[string]string{}, Findings: s.Findings()}
	for _, f := range result.Findings {
		result.Over = append(result.Over, f.Pod.UID)
	}
	if len(result.Findings) == 0 {
		result.NotApplicable = s.NoneReason("")
	}
	if len(s.UnavailableSources) > 0 {
		for _, p := range s.Pods {
			result.Unjudged = append(result.Unjudged, p.RefusalReason())
		}
	}
	return result, processor.AddJSON(result.Values, map[string]any{keyList: s})
}
