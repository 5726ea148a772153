// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
)

// Summary is the survey as all looks give it.
func (s *Survey) Summary() mountstate.Survey {
	sum := mountstate.Survey{Coverage: s.Coverage, Unknown: s.Unknown, Evidence: func() any { return s.Record() }}
	sum.Coverage.Namespace, sum.Coverage.Volumes = s.Namespace, len(s.Volumes)
	for _, v := range s.Broken() {
		sum.Findings = append(sum.Findings, v.Findings()...)
	}
	return sum
}

// addUnknownVolumes notes the volumes of which nothing can be said, but for those that have gone meanwhile.
func addUnknownVolumes(to *mountstate.Unknown, volumes []*Health) {
	for _, v := range volumes {
		if v.Verdict.UnknownReason != "" && v.Evidence.Answer.State != probe.Gone {
			to.AddPlace(mountstate.Place{Pod: v.Evidence.Pod, Volume: v.Evidence.Name, Point: v.Evidence.Point, Reason: v.Verdict.UnknownReason})
		}
	}
}

// unknownPlace is a copy of a volume of which nothing can be said.
func (c *Copy) unknownPlace(of *Health, reason string) mountstate.Place {
	pod := c.Holder.Pod
	if pod.UID == "" {
		pod = of.Evidence.Pod
	}
	return mountstate.Place{Pod: pod, Container: c.Holder.Container, Volume: of.Evidence.Name, Point: c.Mount.Point, Namespace: c.Mount.Namespace.String(), Reason: reason}
}
