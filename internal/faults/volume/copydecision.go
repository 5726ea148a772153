// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/podinfo"
)

// Decision is whether a copy may be replaced if there is a source, and the reason why, or why not.
type Decision struct {
	Replaceable bool
	Reason      string
}

func refuse(format string, args ...any) Decision {
	return Decision{Reason: fmt.Sprintf(format, args...)}
}

// decide decides whether the copy in a container is what its pod's spec asks for, and can be got at.
func (s *copySearch) decide(c *Copy, o *otherNamespace) Decision {
	if refusal := hiddenOrForeign(c, s.namespaces.tableOf(o)); refusal != "" {
		return Decision{Reason: refusal}
	}
	specSubPath, refusal := s.checkSpec(c)
	c.origin.specSubPath = specSubPath
	switch {
	case refusal != "":
		return Decision{Reason: refusal}
	case o.refusal != "":
		return Decision{Reason: o.refusal}
	}
	return Decision{Replaceable: true, Reason: fmt.Sprintf("the container runtime has mounted it into %s from %q", c.holderName(),
		c.origin.record.HostPath)}
}

// hiddenOrForeign says why the copy is not what the processes of its namespace see at its point, or was never the volume.
func hiddenOrForeign(c *Copy, table *mountinfo.Table) string {
	if table == nil {
		return "its mount table cannot be read"
	}
	v := c.volume
	top, ok := table.Top(c.Point)
	switch {
	case !ok || top.ID != c.ID:
		return "it is not what its processes see there: another mount hides it"
	case len(table.Children(c.ID)) > 0:
		return "other mounts lie on it"
	case v.Mount.ID != 0 && deviceOf(top) != deviceOf(v.Mount.Mount) && deviceOf(top) != v.location().disk &&
		(top.FSType != v.Mount.FSType || top.Source != v.Mount.Source):
		return fmt.Sprintf("it is of type %q from %q, and the volume of type %q from %q: it is not known ever to have been that volume",
			top.FSType, top.Source, v.Mount.FSType, v.Mount.Source)
	}
	return ""
}

// checkSpec says why the pod's spec does not ask for the copy, and returns the subPath of the spec if it is another than
// the copy's.
func (s *copySearch) checkSpec(c *Copy) (specSubPath, refusal string) {
	pod, record := c.volume.spec.pod, c.origin.record
	sub, part := s.node.ParseSubPath(s.node.OwnPath(record.HostPath, c.Pod.UID))
	switch {
	case part != (c.SubPath != ""):
		return "", fmt.Sprintf("the runtime made it from %q, and it is of directory %q of the volume", record.HostPath, c.SubPath)
	case pod == nil && part:
		return "", "the pod's spec is not known, so neither is which directory of the volume belongs there"
	case pod == nil:
		return "", ""
	case part:
		want, ok := podinfo.FindSubPathMount(s.node, pod, s.node.SubPathPoint(sub))
		if !ok || !isAt(want.Mount, record.ContainerPath) {
			return "", fmt.Sprintf("the pod's spec does not ask for directory %q of the volume at %q", c.SubPath, record.ContainerPath)
		}
		return subPathInSpec(c, want)
	case !specMounts(c, record.ContainerPath):
		return "", fmt.Sprintf("the pod's spec does not ask for this volume at %q in container %q", record.ContainerPath, c.Container)
	}
	return "", ""
}

// isAt reports whether a container is to have a mount at a path.
func isAt(m corev1.VolumeMount, name string) bool {
	return path.Clean("/"+m.MountPath) == path.Clean("/"+name)
}

// specMounts reports whether the spec has the container mount the volume, and not a directory of it, at the path.
func specMounts(c *Copy, at string) bool {
	pod := c.volume.spec.pod
	for _, m := range volumeMounts(pod, c.Container) {
		if !isAt(m, at) || m.SubPath != "" || m.SubPathExpr != "" {
			continue
		}
		for _, spec := range pod.Spec.Volumes {
			if spec.Name == m.Name && c.volume.mayBe(spec) {
				return true
			}
		}
	}
	return false
}

// mayBe reports whether the volume can be that of the spec. The kubelet calls one that comes from a claim by another name.
func (v *Volume) mayBe(spec corev1.Volume) bool {
	own := spec.ConfigMap != nil || spec.Secret != nil || spec.EmptyDir != nil || spec.HostPath != nil || spec.Projected != nil ||
		spec.DownwardAPI != nil || spec.CSI != nil
	return spec.Name == v.Name || !own
}

func volumeMounts(pod *corev1.Pod, container string) []corev1.VolumeMount {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			if c.Name == container {
				return c.VolumeMounts
			}
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if c.Name == container {
			return c.VolumeMounts
		}
	}
	return nil
}
