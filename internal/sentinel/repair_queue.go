// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
)

// maxRepairs is how many repairs are made in a row. They share one inspection before and one after, of all their pods:
// it reads the mount table of the node, which is long on a busy one, whether it covers one pod or several.
const maxRepairs = 16

// repairQueue holds the planned repairs. Pods take turns, one repair each, and the order continues after a new plan. A
// pod with a thousand broken mounts delays no other.
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

// next removes and returns a batch of repairs.
func (q *repairQueue) next() (batch []fault.Action) {
	pods := slices.Sorted(maps.Keys(q.actions))
	at, found := slices.BinarySearch(pods, q.lastPod)
	if found {
		at++
	}
	for ; len(batch) < maxRepairs && !q.empty(); at++ {
		uid := pods[at%len(pods)]
		if all := q.actions[uid]; len(all) > 0 {
			batch, q.lastPod = append(batch, all[0]), uid
			if q.actions[uid] = all[1:]; len(all) == 1 {
				delete(q.actions, uid)
			}
		}
	}
	return batch
}

// putBack returns repairs of the last batch that were not tried, in the order of the batch.
func (q *repairQueue) putBack(actions []fault.Action) {
	for _, a := range slices.Backward(actions) {
		q.actions[a.Pod.UID] = slices.Insert(q.actions[a.Pod.UID], 0, a)
	}
}

// dropPod drops the repairs of a pod. The next scan plans them again.
func (q *repairQueue) dropPod(uid string) { delete(q.actions, uid) }

func isEnding(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
