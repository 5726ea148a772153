// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
)

// badSources looks for what containers that are not started mount and cannot get. Only the specs of pods say what that is.
func badSources(ctx context.Context, s *scan) (faults []fault.Finding, err error) {
	uids, err := s.source.podUIDs(ctx)
	if err != nil {
		return nil, err
	}
	here := slices.DeleteFunc(slices.Collect(maps.Values(s.specs)), func(pod *corev1.Pod) bool {
		return pod == nil || !slices.Contains(uids, string(pod.UID))
	})
	slices.SortFunc(here, func(a, b *corev1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	for _, pod := range here {
		found, err := s.source.badSources(ctx, pod)
		if err != nil {
			return nil, err
		}
		faults = append(faults, found...)
	}
	return faults, nil
}
