// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
)

// maxRepairs is how many repairs of one pod are made in a row. They share one inspection, which covers the whole pod.
const maxRepairs = 16

// repairQueue holds the planned repairs. Pods take turns, and the order continues after a new plan. A pod with a
// thousand broken mounts delays no other.
type repairQueue struct {
	actions map[string][]fault.Action // by the UID of the pod
	lastPod string                    // the UID of the pod that had the last turn
}

// plan replaces all planned repairs.
func (q *repairQueue) plan(actions []fault.Action) {
	q.actions = map[string][]fault.Action{}
	for _, a := range actions {
		q.actions[a.Pod.UID] = append(q.actions[a.Pod.UID], a)
	}
}

func (q *repairQueue) empty() bool { return len(q.actions) == 0 }

// next removes and returns a batch of repairs of the next pod.
func (q *repairQueue) next() []fault.Action {
	pods := slices.Sorted(maps.Keys(q.actions))
	at, found := slices.BinarySearch(pods, q.lastPod)
	if found {
		at++
	}
	q.lastPod = pods[at%len(pods)]
	all := q.actions[q.lastPod]
	batch := all[:min(len(all), maxRepairs)]
	q.setRemaining(all[len(batch):])
	return batch
}

// setRemaining sets the repairs that remain for the pod of the last turn.
func (q *repairQueue) setRemaining(remaining []fault.Action) {
	if q.actions[q.lastPod] = remaining; len(remaining) == 0 {
		delete(q.actions, q.lastPod)
	}
}

// putBack returns repairs of the last batch that were not tried.
func (q *repairQueue) putBack(actions []fault.Action) {
	q.setRemaining(append(slices.Clone(actions), q.actions[q.lastPod]...))
}

// dropPod drops the repairs of the pod of the last turn. The next scan plans them again.
func (q *repairQueue) dropPod() { q.setRemaining(nil) }

func isEnding(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
