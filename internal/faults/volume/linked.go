// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// Some CSI drivers publish a volume as a symbolic link to a mount of their own, such as those of Fluid and of IBM Storage Scale. The container
// runtime follows the link when it makes the mount of a container. So the volume is the path that the link leads to, as a hostPath is.

// listLinked lists the volumes that are symbolic links which lead to a mount. A link to the node's own disk is not judged: the driver has unmounted its
// file system, or never mounted it.
func (e *enumerator) listLinked(ctx context.Context) (volumes []*Volume, err error) {
	err = e.eachPlace(ctx, func(place kubelet.Volume) {
		to := e.linkAt(place)
		if to == "" || !e.scope.Includes(place.PodUID, place.Name) {
			return
		}
		point := e.host.node.VolumePoint(place)
		m, ok := e.host.table.On(to)
		if own, known := e.host.table.On(point); !ok || m.Point == "/" || known && m.ID == own.ID {
			if pod := e.podByUID(place.PodUID); pod == nil || podinfo.StateOf(pod) != fault.PodDeleting && !podinfo.Ended(pod) {
				e.seen.Unknown.AddPlace(mountstate.Place{Pod: e.faultPod(place.PodUID), Volume: place.Name, Point: point, Reason: fmt.Sprintf(
					"the driver has made a symbolic link to %q there, and nothing is mounted at that path or above it: what is written there does not get "+
						"into the volume", to)})
			}
			return
		}
		v := e.volumeAt(place, e.host.withNamespace(m))
		v.Point, v.Link, v.spec.hostPath = to, point, linkedPath(to)
		v.Staging, v.UnstagedDir = nil, ""
		v.NoStagingReason = fmt.Sprintf("the driver has made a symbolic link at %q to %q, so there is no mount of the kubelet's to replace", point, to)
		volumes = append(volumes, v)
	})
	return volumes, err
}

// linkAt is the path that the symbolic link of a driver at a place leads to; empty if there is none.
func (e *enumerator) linkAt(place kubelet.Volume) string {
	if place.Plugin != kubelet.CSIPlugin || place.Block {
		return ""
	}
	point := e.host.node.VolumePoint(place)
	if _, mounted := e.host.visibleMounts[point]; mounted {
		return ""
	}
	return kubelet.Symlink(point)
}

// linkedPath has the runtime's demand on a path that a link leads to: that it is there.
func linkedPath(to string) *corev1.HostPathVolumeSource {
	directory := corev1.HostPathDirectory
	return &corev1.HostPathVolumeSource{Path: to, Type: &directory}
}
