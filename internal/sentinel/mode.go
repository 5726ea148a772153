// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
)

// always is a Guard with one mode for all faults, and without budgets.
type always struct{ mode Mode }

// Mode implements Guard.
func (a always) Mode(fault.Code, *corev1.Pod) Mode { return a.mode }

// Acquire implements Guard.
func (a always) Acquire(context.Context, fault.Finding, *corev1.Pod) bool { return a.mode == Automatic }

// Ended implements Guard.
func (always) Ended(fault.Finding, error) {}

// Subscribe implements Guard.
func (always) Subscribe() <-chan struct{} { return nil }

// guard returns the Guard, or one that has the sentinel's mode for all faults.
func (s *Sentinel) guard() Guard {
	if s.Guard == nil {
		return always{s.Mode}
	}
	return s.Guard
}

// mode returns what may be done about the fault of a bind.
func (w *bindWatcher) mode(b *bind) Mode {
	return w.guard().Mode(b.code, w.Pods.PodByUID(b.sub.PodUID))
}

// mayRepairSome reports whether the guard may allow the repair of some of the binds if they are stale.
func (w *bindWatcher) mayRepairSome(batch []*bind) bool {
	return slices.ContainsFunc(batch, func(b *bind) bool {
		pod := w.Pods.PodByUID(b.sub.PodUID)
		return pod != nil && w.guard().Mode(fault.StaleSubPath, pod) == Automatic
	})
}

// mayRepairSome reports whether the guard may allow the repair of a fault of a volume.
func (w *volumeWatcher) mayRepairSome(v *volume.Health, pod *corev1.Pod) bool {
	return slices.ContainsFunc(v.Findings(), func(f fault.Finding) bool { return w.guard().Mode(f.Code, pod) == Automatic })
}

// modeOf returns what may be done by an action now.
func (w *volumeWatcher) modeOf(a fault.Action) Mode {
	return w.guard().Mode(a.Fault, w.Pods.PodByUID(a.Pod.UID))
}

// acquire reports whether the guard allows a repair now. A yes counts in its budgets.
func (w *volumeWatcher) acquire(ctx context.Context, a fault.Action) bool {
	f, known := w.present[faultKeyOf(a.Mount, a.Fault)]
	pod := w.Pods.PodByUID(a.Pod.UID)
	return known && pod != nil && w.guard().Acquire(ctx, f, pod)
}
