// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// Fault is a fault that is present.
type Fault struct {
	fault.Finding
	// Since is when it began. It is zero if the kernel does not record it.
	Since time.Time
	// Enter is how a person comes into the mount namespace of the mount.
	Enter fault.Enter
}

// withState returns the fault with the current state of its container and its pod.
func (f *Fault) withState(pod *corev1.Pod) *Fault {
	if pod == nil {
		return f
	}
	now := podinfo.DetailsOf(pod, f.Container)
	if f.Details.Container == now.Container && f.Details.PodState == now.PodState {
		return f
	}
	other := *f
	other.Details.Container, other.Details.PodState = now.Container, now.PodState
	return &other
}

// source is a part of the sentinel that finds faults.
type source int

const (
	fromBinds source = iota
	fromVolumes
	fromOrphans
	fromSources
	fromDevices
	fromLeaving
	fromStacks
	sourceCount
)

// searches are those of each source.
var searches = [sourceCount]fault.Search{
	fromBinds: fault.SearchSubPaths, fromVolumes: fault.SearchVolumes, fromOrphans: fault.SearchOrphans,
	fromSources: fault.SearchSources, fromDevices: fault.SearchDevices, fromLeaving: fault.SearchLeaving, fromStacks: fault.SearchStacks,
}

// Codes lists the codes of a catalogue that the sentinel finds, in order.
func Codes(known fault.Catalogue) []fault.Code { return known.FoundBy(searches[:]...) }

// Faults returns the present faults, in no order. unknown are the codes of sources whose first scan has not ended. The
// caller changes none of the faults.
func (s *Sentinel) Faults() (present []*Fault, unknown []fault.Code) {
	if s.Mode != Observe && s.Mode != Automatic {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for from, search := range searches {
		r := &s.reports[from]
		present = append(present, r.faults...)
		exists := true
		switch source(from) {
		case fromVolumes:
			exists = s.Volumes != nil
		case fromOrphans:
			exists = s.Orphans != nil
		case fromSources, fromDevices, fromLeaving, fromStacks:
			exists = s.Looks[search] != nil
		}
		if exists && !r.scanned {
			unknown = append(unknown, fault.Known().FoundBy(search)...)
		}
	}
	slices.Sort(unknown)
	return mountstate.Attribute(present, func(f *Fault) *fault.Finding { return &f.Finding }), slices.Compact(unknown)
}

// report is what a source has said last.
type report struct {
	status Status // of binds and of volumes only
	faults []*Fault
	// scanned is set when the first scan has ended. No fault is known before.
	scanned bool
}

// publish replaces the faults of one source. A source that cannot scan does not publish, and its last faults stay.
func (s *Sentinel) publish(from source, faults []*Fault) {
	s.mu.Lock()
	r := &s.reports[from]
	changed := !r.scanned || len(r.faults)+len(faults) > 0
	r.faults, r.scanned = faults, true
	s.mu.Unlock()
	if s.Changed != nil && changed {
		s.Changed()
	}
}
