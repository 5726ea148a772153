// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/bounded"
)

// nameTimeout bounds the wait for one source of names: names are a convenience.
const nameTimeout = 2 * time.Second

// The sources of the names of pods.
const (
	namesFromPods    = "pods"
	namesFromRuntime = "runtime"
	namesFromLogs    = "logs"
)

type podNames = map[string]kubelet.PodName

// nameSource is a source of the names of pods by UID.
type nameSource struct {
	name     string
	askNames func(ctx context.Context) (podNames, error)
}

// addPodNames puts the names of pods into faults that have a UID alone. Names are for people and choose nothing. No
// source is asked that is not needed, and none that fails is fatal.
func (s *scan) addPodNames(ctx context.Context, faults []fault.Finding) {
	s.looked.PodNames.From = []string{}
	if slices.ContainsFunc(faults, func(f fault.Finding) bool { return !lacksPodName(f) }) {
		s.looked.PodNames.From = append(s.looked.PodNames.From, namesFromPods)
	}
	if !slices.ContainsFunc(faults, lacksPodName) {
		return
	}
	for _, source := range []nameSource{{namesFromRuntime, s.source.runtimeNames}, {namesFromLogs, s.source.logNames}} {
		if !slices.ContainsFunc(faults, lacksPodName) {
			return
		}
		names, err := callWithin(ctx, nameTimeout, source.askNames)
		switch {
		case errors.Is(err, kubelet.ErrNoRuntime) && s.looked.Kubelet.PID == 0: // there is no runtime to ask
		case err != nil:
			s.looked.PodNames.Errors = append(s.looked.PodNames.Errors, fmt.Sprintf("%s: %v", source.name, err))
		case fillPodNames(faults, names):
			s.looked.PodNames.From = append(s.looked.PodNames.From, source.name)
		}
	}
}

// lacksPodName reports whether there is a pod and its name is not known.
func lacksPodName(f fault.Finding) bool { return f.Pod.Name == "" && f.Pod.UID != "" }

// fillPodNames reports whether names had any that was missing.
func fillPodNames(faults []fault.Finding, names podNames) (filled bool) {
	for i := range faults {
		pod := &faults[i].Pod
		if name, ok := names[pod.UID]; ok && pod.Name == "" && name.Name != "" {
			pod.Namespace, pod.Name = name.Namespace, name.Name
			filled = true
		}
	}
	return filled
}

// callWithin gives up on a source that does not answer in time.
func callWithin[T any](ctx context.Context, limit time.Duration, ask func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return bounded.Do(ctx, &bounded.Calls{}, bounded.Call{}, func() (T, error) { return ask(ctx) })
}

// addContainerStates asks the runtime whether the containers run whose next start a fault concerns, if no spec says so.
// The answer changes when the fault hurts, not whether it is one: without an answer it is not known.
func (s *scan) addContainerStates(ctx context.Context, faults []fault.Finding) {
	asked := map[[2]string][]*fault.Finding{}
	for i := range faults {
		f := &faults[i]
		if f.Container != "" && f.Details.Container == "" && s.specs.PodByUID(f.Pod.UID) == nil &&
			fault.Known().Advise(*f, fault.Caller{}).Impact == fault.ImpactNextStart {
			key := [2]string{f.Pod.UID, f.Container}
			asked[key] = append(asked[key], f)
		}
	}
	if len(asked) == 0 || s.looked.Kubelet.PID == 0 {
		return
	}
	states, err := s.source.states(ctx, func(uid, container string) bool { return asked[[2]string{uid, container}] != nil })
	if err != nil {
		return // the runtime's errors are reported with the gaps
	}
	for _, state := range states {
		for _, f := range asked[[2]string{state.PodUID, state.Container}] {
			switch {
			case state.Running:
				f.Details.Container = fault.ContainerRuns
			case !state.Ended || state.ExitCode != 0: // a container that has succeeded may not be started again
				f.Details.Container = fault.ContainerDown
			}
		}
	}
}
