// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"maps"
	"slices"

	"kubediag.org/kubediag/internal/kubelet/volume"
)

// maxRepairs is how many repairs of one pod follow one another. They share one inspection, as that looks at all the pod has.
const maxRepairs = 16

// repairQueue holds the repairs that are still to be made. Pods take turns, and keep their place in the order when all is planned again,
// so that a pod with a thousand broken mounts holds up no other.
type repairQueue struct {
	steps map[string][]volume.Step // by the UID of the pod
	last  string                   // pod that had its turn
}

// plan replaces what is to be done.
func (t *repairQueue) plan(steps []volume.Step) {
	t.steps = map[string][]volume.Step{}
	for _, s := range steps {
		t.steps[s.PodUID] = append(t.steps[s.PodUID], s)
	}
}

func (t *repairQueue) empty() bool { return len(t.steps) == 0 }

// next takes out a batch of the pod whose turn it is.
func (t *repairQueue) next() []volume.Step {
	pods := slices.Sorted(maps.Keys(t.steps))
	at, found := slices.BinarySearch(pods, t.last)
	if found {
		at++
	}
	t.last = pods[at%len(pods)]
	all := t.steps[t.last]
	batch := all[:min(len(all), maxRepairs)]
	t.put(all[len(batch):])
	return batch
}

// put sets what is left of the pod that had its turn last.
func (t *repairQueue) put(left []volume.Step) {
	if t.steps[t.last] = left; len(left) == 0 {
		delete(t.steps, t.last)
	}
}

// back returns steps of the last batch that were not tried.
func (t *repairQueue) back(steps []volume.Step) {
	t.put(append(slices.Clone(steps), t.steps[t.last]...))
}

// fail drops all steps of the pod that had its turn last, until all is looked at again.
func (t *repairQueue) fail() { t.put(nil) }
