// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
)

// states asks the runtime whether the containers run whose next start a fault concerns, if no spec says so. The answer
// changes when the fault hurts, not whether it is one: without an answer it is not known.
func (s *scan) states(ctx context.Context, faults []fault.Finding) {
	asked := map[[2]string][]*fault.Finding{}
	for i := range faults {
		f := &faults[i]
		if f.Container != "" && f.Details.Container == "" && s.specs.PodByUID(f.Pod.UID) == nil &&
			fault.Advise(*f, fault.Caller{}).Impact == fault.ImpactNextStart {
			key := [2]string{f.Pod.UID, f.Container}
			asked[key] = append(asked[key], f)
		}
	}
	if len(asked) == 0 || s.looked.KubeletPID == 0 {
		return
	}
	states, err := s.source.states(ctx, func(uid, container string) bool { return asked[[2]string{uid, container}] != nil })
	if err != nil {
		return // the runtime's errors are reported with the gaps
	}
	for _, state := range states {
		for _, f := range asked[[2]string{state.PodUID, state.Container}] {
			f.Details.Container = containerState(state)
		}
	}
}

// containerState is empty for a container that has succeeded: it may not be started again.
func containerState(s cri.State) fault.ContainerState {
	switch {
	case s.Running:
		return fault.ContainerRuns
	case s.Ended && s.ExitCode == 0:
		return ""
	}
	return fault.ContainerDown
}
