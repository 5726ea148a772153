// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
)

// PodByUID returns the pod of the file; nil if it has none.
func (p podFile) PodByUID(uid string) *corev1.Pod { return p[uid] }

// PodsNow lists what the file has.
func (p podFile) PodsNow(context.Context) ([]metav1.ObjectMeta, error) {
	all := make([]metav1.ObjectMeta, 0, len(p))
	for _, pod := range p {
		all = append(all, pod.ObjectMeta)
	}
	return all, nil
}

// brokenVolumes looks for volumes whose file system is dead, hangs, or is not the one that the pod was given.
func brokenVolumes(ctx context.Context, s *scan) ([]fault.Finding, error) {
	survey, err := s.source.volumes(ctx, s.specs)
	if err != nil {
		return nil, err
	}
	s.looked.Volumes, s.looked.VolumesIncomplete = len(survey.Volumes), survey.Coverage.Incomplete
	if passed := survey.Coverage.Namespaces; passed != nil {
		s.looked.pass(passed.Denied, passed.Partial, passed.Skipped)
	}
	var faults []fault.Finding
	for _, v := range survey.Broken() {
		faults = append(faults, v.Findings()...)
	}
	return faults, nil
}

// orphanedPods looks for directories of pods that are gone. Without the specs of all pods nothing is proven; what speaks
// for it otherwise is told all the same, where only sources are missing or one thing else.
func orphanedPods(ctx context.Context, s *scan) ([]fault.Finding, error) {
	survey, err := s.source.orphans(ctx, s.specs)
	if err != nil {
		return nil, err
	}
	if passed := survey.Looked; passed != nil {
		s.looked.pass(passed.Denied, passed.Partial, passed.Skipped)
	}
	s.looked.pass(0, 0, survey.Skipped)
	for _, p := range survey.Pods {
		if len(p.Unproven) <= max(1, len(survey.Unasked)) && (len(p.Volumes) > 0 || p.SubPaths) {
			s.looked.Unproven = append(s.looked.Unproven, unproven{
				Point: p.Path, Why: "it has volumes and may belong to no pod: " + strings.Join(p.Unproven, "; "),
			})
		}
	}
	return survey.Findings(), nil
}
