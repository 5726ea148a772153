// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
)

// TestFaultsAreUnknownUntilScanned: the codes of a search are unknown until it publishes. One that publishes nothing
// more keeps its faults.
func TestFaultsAreUnknownUntilScanned(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{"", Off} {
		s := &Sentinel{Mode: mode, Volumes: newDeadVolumes(0)}
		if present, unknown := s.Faults(); present != nil || unknown != nil {
			t.Errorf("mode %q: present %v, unknown %v", mode, present, unknown)
		}
	}
	changes := 0
	s := &Sentinel{Mode: Observe, Volumes: newDeadVolumes(0), Changed: func() { changes++ }}
	expect := func(changed int, count int, want ...fault.Code) {
		t.Helper()
		present, unknown := s.Faults()
		if diff := cmp.Diff(want, unknown); diff != "" || len(present) != count || changes != changed {
			t.Errorf("%d present, %d changes; unknown (-want +got):\n%s", len(present), changes, diff)
		}
	}
	volumes := fault.Known().FoundBy(fault.SearchVolumes)
	expect(0, 0, fault.Known().FoundBy(fault.SearchSubPaths, fault.SearchVolumes)...)
	s.publish(fault.SearchSubPaths, nil) // the first scan is a change, even if it finds nothing
	expect(1, 0, volumes...)
	s.publish(fault.SearchSubPaths, nil)
	expect(1, 0, volumes...)
	s.publish(fault.SearchVolumes, []*Fault{{}, {}})
	expect(2, 2)
	s.publish(fault.SearchSubPaths, []*Fault{{}})
	expect(3, 3)
	s.publish(fault.SearchSubPaths, nil)
	expect(4, 2)
}

// TestFaultHasContainerState: withState returns the current state of the container, and leaves the published fault alone.
func TestFaultHasContainerState(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "app"}}}}
	f := &Fault{Finding: fault.Finding{Code: fault.StaleSubPath, Container: "app", Details: fault.Details{Container: fault.ContainerRuns}}}
	down := f.withState(pod)
	if down.Details.Container != fault.ContainerDown || f.Details.Container != fault.ContainerRuns || down.withState(pod) != down || f.withState(nil) != f {
		t.Errorf("down: %+v, was: %+v", down, f)
	}
}

// TestFaultsOfOrphans: the code is unknown until a survey could ask every source.
func TestFaultsOfOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &fakeOrphans{uids: []string{"a"}, unasked: []string{"no route"}}
		s := &Sentinel{Mode: Observe, Guard: always{Observe}, Observer: o, Orphans: o}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go s.watchOrphans(ctx)
		for _, answer := range [][]string{o.unasked, nil} {
			o.mu.Lock()
			o.unasked = answer
			o.mu.Unlock()
			time.Sleep(5 * time.Minute)
			present, unknown := s.Faults()
			if known := !slices.Contains(unknown, fault.OrphanedPodVolumes); known != (answer == nil) || known != (len(present) == 1) {
				t.Errorf("asked %v: %d present, unknown %v", answer, len(present), unknown)
			}
		}
	})
}

// TestAddedFaultIsWatched if a search that the sentinel makes finds it.
func TestAddedFaultIsWatched(t *testing.T) {
	t.Parallel()
	for _, s := range fault.Searches() {
		known := append(slices.Clone(fault.Known()), fault.Entry{Code: "AddedFault", Searches: []fault.Search{s}})
		if !slices.Contains(Codes(known), "AddedFault") {
			t.Errorf("found by %s, and not watched", s)
		}
	}
}
