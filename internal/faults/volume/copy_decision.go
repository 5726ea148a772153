// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/podinfo"
)

// Decision is whether a copy may be replaced if there is a source, and the reason why, or why not.
type Decision struct {
	Replaceable bool
	Reason      string
}

func refuseReplacement(format string, args ...any) Decision {
	return Decision{Reason: fmt.Sprintf(format, args...)}
}

// decideInContainer decides whether the copy in a container may be replaced: its processes see it at its point, it was once the volume, the spec
// of its pod asks for it, and its namespace can be entered.
func (s *copySearch) decideInContainer(copied *Copy, other *otherNamespace) Decision {
	table := s.namespaces.tableOf(other)
	if table == nil {
		return refuseReplacement("its mount table cannot be read")
	}
	own, staged := &copied.volume.Evidence.Mount, copied.volume.Evidence.stagedLocation()
	top, ok := table.Top(copied.Mount.Point)
	switch {
	case !ok || top.ID != copied.Mount.ID:
		return refuseReplacement("another mount hides it from its processes")
	case len(table.Children(copied.Mount.ID)) > 0:
		return refuseReplacement("other mounts lie on it")
	case own.ID != 0 && deviceOf(top) != deviceOf(own.Mount) && deviceOf(top) != staged.nodeDisk() && (top.FSType != own.FSType || top.Source != own.Source):
		return refuseReplacement("it is of type %q from %q, and the volume of type %q from %q: nothing proves that it was ever that volume",
			top.FSType, top.Source, own.FSType, own.Source)
	}
	specSubPath, refusal := s.checkSpec(copied)
	copied.origin.specSubPath = specSubPath
	switch {
	case refusal != "":
		return Decision{Reason: refusal}
	case other.refusal != "":
		return Decision{Reason: other.refusal}
	}
	return Decision{Replaceable: true, Reason: fmt.Sprintf("the container runtime has mounted it into %s from %q", copied.Holder.describe(),
		copied.origin.runtimeRecord.HostPath)}
}

// checkSpec says why the pod's spec does not ask for the copy, and returns the subPath of the spec if it is another
// than the copy's.
func (s *copySearch) checkSpec(copied *Copy) (specSubPath, refusal string) {
	pod, record := copied.volume.Evidence.spec.pod, copied.origin.runtimeRecord
	sub, part := s.host.node.ParseSubPath(s.host.node.OwnPath(record.HostPath, copied.Holder.Pod.UID))
	switch {
	case part != (copied.SubPath != ""):
		return "", fmt.Sprintf("the runtime made it from %q, and it is of directory %q of the volume", record.HostPath, copied.SubPath)
	case pod == nil && part:
		return "", "the pod's spec is not known, so neither is which directory of the volume belongs there"
	case pod == nil:
		return "", ""
	case part:
		want, ok := podinfo.FindSubPathMount(s.host.node, pod, s.host.node.SubPathPoint(sub))
		if !ok || !isMountedAt(want.Mount, record.ContainerPath) {
			return "", fmt.Sprintf("the pod's spec does not ask for directory %q of the volume at %q", copied.SubPath, record.ContainerPath)
		}
		return subPathInSpec(copied, want)
	case !specMountsVolume(copied, record.ContainerPath):
		return "", fmt.Sprintf("the pod's spec does not ask for this volume at %q in container %q", record.ContainerPath, copied.Holder.Container)
	}
	return "", ""
}

// isMountedAt reports whether a container is to have a mount at a path.
func isMountedAt(m corev1.VolumeMount, name string) bool {
	return path.Clean("/"+m.MountPath) == path.Clean("/"+name)
}

// specMountsVolume reports whether the spec has the container mount the volume, and not a directory of it, at the path.
func specMountsVolume(copied *Copy, at string) bool {
	pod := copied.volume.Evidence.spec.pod
	for _, m := range podinfo.VolumeMounts(pod, copied.Holder.Container) {
		if !isMountedAt(m, at) || m.SubPath != "" || m.SubPathExpr != "" {
			continue
		}
		for _, spec := range pod.Spec.Volumes {
			// The kubelet calls a volume that comes from a claim by another name.
			own := spec.ConfigMap != nil || spec.Secret != nil || spec.EmptyDir != nil || spec.HostPath != nil || spec.Projected != nil ||
				spec.DownwardAPI != nil || spec.CSI != nil
			if spec.Name == m.Name && (spec.Name == copied.volume.Evidence.Name || !own) {
				return true
			}
		}
	}
	return false
}
