// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/share"
)

// maxRepairs is how many repairs are made in a row. They share one inspection before and one after, of all their pods:
// it reads the mount table of the node, which is long on a busy one, whether it covers one pod or several.
const maxRepairs = 16

// repairQueue holds the planned repairs. Namespaces take turns, one repair each, and in each of them its pods. The order of the pods continues
// after a new plan. A pod with a thousand broken mounts delays no other, nor does a tenant with a hundred pods.
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
	var all []fault.Action
	for i := range pods {
		all = append(all, q.actions[pods[(at+i)%len(pods)]]...)
	}
	turns := share.InTurns(all, func(a fault.Action) share.Owner { return share.Owner{Namespace: a.Pod.Namespace, Pod: a.Pod.UID} })
	batch = turns[:min(len(turns), maxRepairs)]
	for _, a := range batch {
		q.lastPod = a.Pod.UID
		if q.actions[q.lastPod] = q.actions[q.lastPod][1:]; len(q.actions[q.lastPod]) == 0 {
			delete(q.actions, q.lastPod)
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
