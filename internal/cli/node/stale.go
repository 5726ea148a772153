// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
)

// staleSubPaths looks for subPath binds whose source is gone or another one by now. A bind that the kubelet renews by
// itself is counted, and is no fault.
func staleSubPaths(ctx context.Context, s *scan) ([]fault.Finding, error) {
	survey, err := s.source.subPaths(ctx, s.specs)
	if err != nil {
		return nil, err
	}
	l := &s.looked
	l.MountNamespace, l.Pods, l.Mounts, l.Binds = survey.Namespace, survey.Pods, survey.Mounts, survey.Binds
	l.KubeletRenews = renewsUnknown
	if survey.RenewsKnown {
		l.KubeletRenews = survey.Renews
	}
	var faults []fault.Finding
	for _, found := range survey.Found {
		switch {
		case found.Verdict == subpath.Unproven:
			l.Unproven = append(l.Unproven, unproven{Point: found.State.Point, Why: found.Why})
		case survey.RenewsKnown && survey.Renews && found.Renewed():
			l.RenewedByKubelet++
		default:
			faults = append(faults, found.Fault(survey.Namespace))
		}
	}
	return faults, nil
}
