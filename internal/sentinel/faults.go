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

// Watched are the searches that the sentinel makes when something happens. All others are in its Looks.
var Watched = []fault.Search{fault.SearchSubPaths, fault.SearchVolumes, fault.SearchOrphans}

// Codes lists the codes of a catalogue that the sentinel finds, in order.
func Codes(known fault.Catalogue) []fault.Code { return known.FoundBy(fault.Searches()...) }

// Faults returns the present faults, in no order. unknown are the codes of searches whose first one has not ended. The
// caller changes none of the faults.
func (s *Sentinel) Faults() (present []*Fault, unknown []fault.Code) {
	if s.Mode != Observe && s.Mode != Automatic {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, search := range fault.Searches() {
		r := s.reportOf(search)
		present = append(present, r.faults...)
		_, exists := s.Looks[search]
		switch search {
		case fault.SearchSubPaths:
			exists = true
		case fault.SearchVolumes:
			exists = s.Volumes != nil
		case fault.SearchOrphans:
			exists = s.Orphans != nil
		}
		if exists && !r.scanned {
			unknown = append(unknown, fault.Known().FoundBy(search)...)
		}
	}
	slices.Sort(unknown)
	return mountstate.Attribute(present, func(f *Fault) *fault.Finding { return &f.Finding }), slices.Compact(unknown)
}

// report is the result of a search.
type report struct {
	status Status // of binds and of volumes only
	faults []*Fault
	// scanned is set when the first scan has ended. No fault is known before.
	scanned bool
}

// reportOf returns the report of a search. The caller holds mu.
func (s *Sentinel) reportOf(search fault.Search) *report {
	if s.reports == nil {
		s.reports = map[fault.Search]*report{}
	}
	if s.reports[search] == nil {
		s.reports[search] = &report{}
	}
	return s.reports[search]
}

// publish replaces the faults of one search. One that cannot be made does not publish, and its last faults stay.
func (s *Sentinel) publish(from fault.Search, faults []*Fault) {
	s.mu.Lock()
	r := s.reportOf(from)
	changed := !r.scanned || len(r.faults)+len(faults) > 0
	r.faults, r.scanned = faults, true
	s.mu.Unlock()
	if s.Changed != nil && changed {
		s.Changed()
	}
}
