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
	last    string                    // pod that had its turn
}

// plan replaces what is to be done.
func (t *repairQueue) plan(actions []fault.Action) {
	t.actions = map[string][]fault.Action{}
	for _, a := range actions {
		t.actions[a.Pod.UID] = append(t.actions[a.Pod.UID], a)
	}
}

func (t *repairQueue) empty() bool { return len(t.actions) == 0 }

// next takes out a batch of the pod whose turn it is.
func (t *repairQueue) next() []fault.Action {
	pods := slices.Sorted(maps.Keys(t.actions))
	at, found := slices.BinarySearch(pods, t.last)
	if found {
		at++
	}
	t.last = pods[at%len(pods)]
	all := t.actions[t.last]
	batch := all[:min(len(all), maxRepairs)]
	t.put(all[len(batch):])
	return batch
}

// put sets what is left of the pod that had its turn last.
func (t *repairQueue) put(left []fault.Action) {
	if t.actions[t.last] = left; len(left) == 0 {
		delete(t.actions, t.last)
	}
}

// back returns actions of the last batch that were not tried.
func (t *repairQueue) back(actions []fault.Action) {
	t.put(append(slices.Clone(actions), t.actions[t.last]...))
}

// fail drops all actions for the pod that had its turn last, until all is looked at again.
func (t *repairQueue) fail() { t.put(nil) }
