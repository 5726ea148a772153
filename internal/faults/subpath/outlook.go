// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
)

// Outlook is the future of a stale bind if nothing is done: at the container's next start, or, if the pod is being
// deleted, when the kubelet takes its volumes away.
type Outlook struct {
	Habit kubelet.Habit `json:"habit,omitempty"`
	// HabitReason says it for people.
	HabitReason string `json:"habitWhy,omitempty"`
	// KeepsPod is whether the bind keeps its pod, which is being deleted, from going.
	KeepsPod bool `json:"keepsPod,omitempty"`
	// StillRuns names a part of such a pod that runs, or says why that is not known. Empty: its last container has ended.
	StillRuns string `json:"stillRuns,omitempty"`
}

// LeftToKubelet reports whether nothing is to be done about a stale bind: the kubelet replaces it itself, or its pod goes in
// spite of it.
func (b Bind) LeftToKubelet() bool {
	return b.Verdict == Stale && b.Habit == kubelet.Renews
}

// AddOutlook fills in the outlook of a stale bind, by the habits of the kubelet. pod is nil if it is not known.
func (b *Bind) AddOutlook(ctx context.Context, habits kubelet.Habits, runtime cri.PodRuntime, pod *corev1.Pod) {
	if b.Verdict != Stale {
		return
	}
	going := pod != nil && pod.DeletionTimestamp != nil
	as := kubelet.StaleBind{FSType: b.State.FSType, Unchanged: b.SourceUnchanged}
	if asked := b.comparison.Asked; asked != nil && asked.Bind.State != probe.Alive {
		as.Errno = asked.Bind.Errno // the kubelet gets it, too
	}
	switch {
	case b.comparison.Asked == nil && !isLocalType(b.State.FSType):
		b.HabitReason = fmt.Sprintf("not known whether this kubelet renews the bind: its file system of type %q was not asked", b.State.FSType)
	case going:
		b.Habit, b.HabitReason = habits.AtEnd(as)
	default:
		b.Habit, b.HabitReason = habits.AtStart(as)
	}
	if !going || as.Errno == 0 || b.Habit == kubelet.Renews {
		return
	}
	b.KeepsPod = true
	what, err := cri.PodRuns(ctx, runtime, string(pod.UID))
	if b.StillRuns = what; err != nil {
		b.StillRuns = "what of it runs is not known: " + err.Error()
	}
}

// mayBeLastMount reports whether no other mount of the file system that was asked is known. The unmount of the last one can wait
// for its server, so the bind is left alone.
func (b Bind) mayBeLastMount() bool {
	return b.comparison.Asked != nil && b.comparison.Asked.Volume == nil
}
