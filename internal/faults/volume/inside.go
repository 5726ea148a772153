// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"maps"
	"slices"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/podinfo"
)

// maxInside bounds how many mounts inside the volumes of one pod are looked at: a workload with Bidirectional propagation
// may make any number of them.
const maxInside = 64

// listInside lists the mounts on file systems that may hang which workloads have made inside volumes. Any type can keep a
// pod from going that is being deleted.
func (e *enumerator) listInside() (volumes []*Volume) {
	inside := map[string]kubelet.Volume{}
	for point, m := range e.host.visibleMounts {
		place, ok := e.host.node.ParseInsideVolume(point)
		if ok && (mountns.MayHang(m.FSType) || podinfo.StateOf(e.podByUID(place.PodUID)) == fault.PodDeleting) && e.scope.Includes(place.PodUID, place.Name) {
			inside[point] = place
		}
	}
	count := map[string]int{} // by UID of the pod
	for _, point := range slices.Sorted(maps.Keys(inside)) {
		m, place := e.host.visibleMounts[point], inside[point]
		if count[place.PodUID]++; count[place.PodUID] > maxInside {
			if count[place.PodUID] == maxInside+1 {
				e.seen.Unknown.AddGap(fmt.Sprintf("mounts inside volumes of pod %q beyond the first %d", place.PodUID, maxInside),
					"there are more of them than are looked at")
			}
			continue
		}
		v := &Volume{
			Pod: e.faultPod(place.PodUID), Plugin: place.Plugin, Name: place.Name, Point: point, Mount: e.host.withNamespace(m),
			spec: podSpec{pod: e.podByUID(place.PodUID)}, HiddenMounts: e.host.hiddenBelow(m), children: len(e.host.table.Children(m.ID)),
		}
		v.setInside()
		volumes = append(volumes, v)
	}
	return volumes
}

// setInside notes that a workload has made the mount of the volume.
func (v *Volume) setInside() {
	v.Inside = true
	v.NoRecordReason = fmt.Sprintf("a workload has made the mount inside volume %q of the pod", v.Name)
	v.NoStagingReason = "no driver mounts it again: " + v.NoRecordReason
}

// hiddenBelow lists the mounts at the place of a mount that it hides, the lowest first.
func (h *hostMounts) hiddenBelow(m mountinfo.Mount) []mountinfo.Mount {
	stack := h.mountStack(m)
	return stack[:len(stack)-1]
}
