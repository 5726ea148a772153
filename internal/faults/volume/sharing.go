// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"slices"

	"kubediag.org/kubediag/internal/fault"
)

// maxSharedWith bounds how many pods are listed for each volume.
const maxSharedWith = 100

// addSharing adds to the broken volumes the other pods that have a mount of the same file system.
func (e *enumerator) addSharing(volumes []*Health) {
	users := map[device][]fault.Pod{} // the pods that have a mount of each broken file system, each once
	for _, v := range volumes {
		if v.Verdict.Code != "" && v.Evidence.Mount.ID != 0 {
			users[deviceOf(v.Evidence.Mount.Mount)] = nil
		}
	}
	for point, m := range e.host.visibleMounts {
		place, ok := e.host.node.ParseVolume(point)
		_, broken := users[deviceOf(m)]
		if !ok || !broken {
			continue
		}
		if pod := e.faultPod(place.PodUID); !slices.Contains(users[deviceOf(m)], pod) {
			users[deviceOf(m)] = append(users[deviceOf(m)], pod)
		}
	}
	for _, pods := range users {
		slices.SortFunc(pods, func(a, b fault.Pod) int { return cmp.Compare(a.UID, b.UID) })
	}
	for _, health := range volumes {
		if health.Verdict.Code == "" || health.Evidence.stagedLocation().OnNodeDisk { // all pods share the node's own disk
			continue
		}
		for _, pod := range users[deviceOf(health.Evidence.Mount.Mount)] {
			if pod.UID == health.Evidence.Pod.UID {
				continue
			}
			if health.Surroundings.SharedWithCount++; len(health.Surroundings.SharedWith) < maxSharedWith {
				health.Surroundings.SharedWith = append(health.Surroundings.SharedWith, pod)
			}
		}
	}
}
