// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"maps"
	"slices"

	"kubediag.org/kubediag/internal/fault"
)

// maxRepairs is how many repairs of one pod follow one another. They share one inspection, as that looks at all the pod has.
const maxRepairs = 16

// repairQueue holds the repairs that are still to be made. Pods take turns, and keep their place in the order when all is planned again,
// so that a pod with a thousand broken mounts holds up no other.
type repairQueue struct {
	actions map[string][]fault.Action // by the UID of the pod
	lastPod string                    // pod that had its turn
}

// plan replaces what is to be done.
func (q *repairQueue) plan(actions []fault.Action) {
	q.actions = map[string][]fault.Action{}
	for _, a := range actions {
		q.actions[a.Pod.UID] = append(q.actions[a.Pod.UID], a)
	}
}

func (q *repairQueue) empty() bool { return len(q.actions) == 0 }

// next takes out a batch of the pod whose turn it is.
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

// setRemaining sets what is left of the pod that had its turn last.
func (q *repairQueue) setRemaining(remaining []fault.Action) {
	if q.actions[q.lastPod] = remaining; len(remaining) == 0 {
		delete(q.actions, q.lastPod)
	}
}

// putBack returns actions of the last batch that were not tried.
func (q *repairQueue) putBack(actions []fault.Action) {
	q.setRemaining(append(slices.Clone(actions), q.actions[q.lastPod]...))
}

// dropPod drops all actions for the pod that had its turn last, until all is looked at again.
func (q *repairQueue) dropPod() { q.setRemaining(nil) }
