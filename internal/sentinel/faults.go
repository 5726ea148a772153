// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
)

// Fault is a fault that is present.
type Fault struct {
	fault.Finding
	// Since is when it began, by the kernel. Zero: the kernel does not say.
	Since time.Time
	// KubeletPID is a process in whose mount namespace the mount is. 0: not known.
	KubeletPID int
}

// withState is the fault with the state that its container has now.
func (f *Fault) withState(pod *corev1.Pod) *Fault {
	if pod == nil {
		return f
	}
	now := subpath.DetailsOf(pod, f.Container).Container
	if f.Details.Container == now {
		return f
	}
	other := *f
	other.Details.Container = now
	return &other
}

// source is a part of the sentinel that finds faults.
type source int

const (
	fromBinds source = iota
	fromVolumes
	fromOrphans
)

// sources have the codes that each of them finds.
var codesBySource = map[source][]fault.Code{
	fromBinds:   {fault.MissingBindSource, fault.StaleSubPath},
	fromVolumes: {fault.DeletedVolumeSource, fault.DisconnectedFUSE, fault.HungMount, fault.StaleFileHandle},
	fromOrphans: {fault.OrphanedPodVolumes},
}

// Faults returns the faults that are present, in no order, and the codes of which it is not known yet whether there are any: the
// sentinel has not looked at everything since its start. The caller changes none of them.
func (s *Sentinel) Faults() (present []*Fault, unknown []fault.Code) {
	if s.Mode != Observe && s.Mode != Automatic {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for from, codes := range codesBySource {
		faults, known := s.faults[from]
		present = append(present, faults...)
		if !known && s.hasSource(from) {
			unknown = append(unknown, codes...)
		}
	}
	slices.Sort(unknown)
	return present, unknown
}

// hasSource reports whether the sentinel has the source at all.
func (s *Sentinel) hasSource(from source) bool {
	switch from {
	case fromVolumes:
		return s.Volumes != nil
	case fromOrphans:
		return s.Orphans != nil
	}
	return true
}

// publish replaces the faults of one source. A source that cannot look does not publish: what it saw last still counts.
func (s *Sentinel) publish(from source, faults []*Fault) {
	s.mu.Lock()
	before, known := s.faults[from]
	if s.faults == nil {
		s.faults = map[source][]*Fault{}
	}
	s.faults[from] = faults
	s.mu.Unlock()
	if s.Changed != nil && (!known || len(before)+len(faults) > 0) {
		s.Changed()
	}
}
