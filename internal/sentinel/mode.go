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

// mode returns what may be done about the fault of a bind.
func (w *bindWatcher) mode(b *bind) Mode {
	return w.Guard.Mode(b.code, w.Pods.PodByUID(b.sub.PodUID))
}

// mayRepairSome reports whether the guard may allow the repair of some of the binds if they are stale.
func (w *bindWatcher) mayRepairSome(batch []*bind) bool {
	return slices.ContainsFunc(batch, func(b *bind) bool {
		pod := w.Pods.PodByUID(b.sub.PodUID)
		return pod != nil && w.Guard.Mode(fault.StaleSubPath, pod) == Automatic
	})
}

// mayRepairSome reports whether the guard may allow the repair of a fault of a volume.
func (w *volumeWatcher) mayRepairSome(v *volume.Health, pod *corev1.Pod) bool {
	return slices.ContainsFunc(v.Findings(), func(f fault.Finding) bool { return w.Guard.Mode(f.Code, pod) == Automatic })
}

// modeOf returns what may be done by an action now.
func (w *volumeWatcher) modeOf(a fault.Action) Mode {
	return w.Guard.Mode(a.Key().Code, w.Pods.PodByUID(a.Pod.UID))
}

// acquire reports whether the guard allows a repair now. A yes counts in its budgets.
func (w *volumeWatcher) acquire(ctx context.Context, a fault.Action) bool {
	f, known := w.present[a.Key()]
	pod := w.Pods.PodByUID(a.Pod.UID)
	return known && pod != nil && w.Guard.Acquire(ctx, f, pod)
}
