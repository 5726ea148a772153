// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/processor"
)

// UnrepairableJudge says which volumes are broken and beyond the repairs of this package.
type UnrepairableJudge struct {
	Inspector Inspector
}

// Unrepairable returns the faults of a pod's volumes for which nothing would be planned, and which a new pod would not
// have, and in reasons why. Without findings, reasons say why there is none. A copy that another pod has is none of this pod's faults.
func (j *UnrepairableJudge) Unrepairable(ctx context.Context, podUID string) (findings []fault.Finding, reasons []string, err error) {
	if podUID == "" {
		return nil, nil, fmt.Errorf("judge volumes: no pod is named")
	}
	survey, err := j.Inspector.Inspect(ctx, mountstate.Scope{PodUIDs: []string{podUID}})
	if err != nil {
		return nil, nil, err
	}
	repairable := []string{fmt.Sprintf("%d volumes on file systems that can die were looked at", len(survey.Volumes))}
	for _, health := range survey.Broken() {
		own := slices.DeleteFunc(health.Findings(), func(f fault.Finding) bool { return health.Evidence.Pod.UID != podUID || f.Pod.UID != podUID })
		if len(own) == 0 {
			continue
		}
		actions, refusals, err := j.Inspector.Plan(ctx, health, volume.PlanOptions{})
		switch {
		case err != nil:
			return nil, nil, err
		case len(actions) > 0:
			repairable = append(repairable, fmt.Sprintf("volume %q can be repaired where it is", health.Evidence.Name))
		default:
			helped := slices.DeleteFunc(own, func(f fault.Finding) bool { return !fault.Known().EvictionHelps(f) })
			if len(helped) == 0 {
				repairable = append(repairable, fmt.Sprintf("a new pod does not repair volume %q: %s", health.Evidence.Name,
					processor.JoinReasons(refusals, maxReasons)))
				continue
			}
			findings, reasons = append(findings, helped...), append(reasons, refusals...)
		}
	}
	if len(findings) == 0 {
		reasons = append(repairable, survey.Unknown.Sentences()...)
	}
	return findings, reasons, nil
}
