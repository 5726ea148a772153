// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// attribute finds the volume that a mount of another namespace is a copy of, and whether it may be replaced. It is called
// inside the kubelet's namespace.
func (l *look) attribute(m mountns.Mount, wanted map[device][]*Volume) {
	s := l.namespaces[placeOf(m.Namespace)]
	m.Namespace = s.ns
	c := &Copy{Mount: m, PIDs: s.pids, Why: s.why}
	if s.owner != nil && !s.foreign {
		c.Pod = fault.Pod{Namespace: s.owner.PodNamespace, Name: s.owner.PodName, UID: s.owner.PodUID}
		c.Container, c.ContainerID = s.owner.Container, s.owner.ContainerID
		l.match(c, s)
	}
	for _, v := range wanted[deviceOf(m.Mount)] {
		if c.volume != nil {
			break
		}
		if sub, ok := v.holds(m.Mount); ok {
			c.volume, c.SubPath = v, sub
		}
	}
	if c.volume == nil { // of nobody that was asked for
		if l.selection == (Selection{}) && !s.silent {
			l.unrelatedMounts.add(m.Unique)
		}
		return
	}
	if s.foreign || c.Pod.UID != "" && c.Pod.UID != c.volume.Pod.UID || s.outside {
		// No business of this pod: another one that was not asked for, the driver, a service of the node, or what a workload
		// has mounted for itself.
		c.volume.ForeignCopies++
		return
	}
	if s.unseen { // as root it may turn out to be foreign
		l.incomplete("a mount of volume %q of pod %q at %q in mount namespace %s could not be judged: %s", c.volume.Name, c.volume.Pod.UID,
			c.Point, c.Namespace, s.why)
		return
	}
	if !l.room(c) {
		return
	}
	if c.Replaceable {
		c.Replaceable, c.Why = l.fits(c, s)
	}
	if c.Replaceable && s.refusal != "" {
		c.Replaceable, c.Why = false, s.refusal
	}
	c.volume.Copies = append(c.volume.Copies, c)
}

// maxCopies bounds how many copies of one container are judged, or of one mount namespace whose container is not known.
const maxCopies = 64

// room tells whether there is room for one more copy, and says once where there is none.
func (l *look) room(c *Copy) bool {
	whose := fmt.Sprintf("mount namespace %s", c.Namespace)
	if c.ContainerID != "" {
		whose = fmt.Sprintf("container %q of pod %s/%s", c.Container, c.Pod.Namespace, c.Pod.Name)
	}
	if l.copies == nil {
		l.copies = map[string]int{}
	}
	n := l.copies[whose+c.ContainerID]
	if l.copies[whose+c.ContainerID]++; n == maxCopies {
		l.incomplete("%s has more than %d mounts of volumes that are looked at: the others were not judged", whose, maxCopies)
	}
	return n < maxCopies
}

// match finds the volume of the container's own pod that the runtime's record of the mount names.
func (l *look) match(c *Copy, s *otherNamespace) {
	whose := fmt.Sprintf("container %q of pod %s/%s", c.Container, c.Pod.Namespace, c.Pod.Name)
	c.Why = whose + " has it, and not as a volume of its own"
	told, ok := l.recordOf(c, s)
	if !ok || l.selection.PodUID != "" && l.selection.PodUID != c.Pod.UID {
		return
	}
	volumes := l.volumesAt(told.HostPath, s.owner)
	if len(volumes) != 1 {
		if len(volumes) > 1 {
			c.Why = fmt.Sprintf("%s has it from %q, which may be one of several volumes of that name", whose, told.HostPath)
		}
		return
	}
	v := volumes[0]
	sub, ok := v.holds(c.Mount.Mount)
	if v.Mount.ID != 0 && !ok {
		c.Why = fmt.Sprintf("%s is to have %q there, and what is mounted is no directory of that volume", whose, told.HostPath)
		return
	}
	c.volume, c.SubPath, c.told, c.Path, c.HostPath = v, sub, &told, told.ContainerPath, told.HostPath
	c.Replaceable = true
}

// recordOf is the runtime's record of what is mounted at the point. A path with a symbolic link of the image in it is
// another in the record: then there must be one record alone of the volume, and nothing mounted where it says.
func (l *look) recordOf(c *Copy, s *otherNamespace) (cri.Mount, bool) {
	var found []cri.Mount
	for _, m := range s.owner.Mounts {
		if path.Clean("/"+m.ContainerPath) == c.Point {
			found = append(found, m) // where two are the same, the later one lies on top
		}
	}
	if len(found) > 0 {
		return found[len(found)-1], true
	}
	table := l.tableOf(s)
	if table == nil {
		return cri.Mount{}, false
	}
	for _, m := range s.owner.Mounts {
		_, there := table.Top(path.Clean("/" + m.ContainerPath))
		if volumes := l.volumesAt(m.HostPath, s.owner); !there && len(volumes) == 1 {
			if _, ok := volumes[0].holds(c.Mount.Mount); ok {
				found = append(found, m)
			}
		}
	}
	if len(found) != 1 {
		return cri.Mount{}, false
	}
	return found[0], true
}

// volumesAt lists the volumes of the container's pod that a path of the host can mean.
func (l *look) volumesAt(told string, owner *cri.Owner) []*Volume {
	name := l.node.OwnPath(told, owner.PodUID)
	place, whole := l.node.ParseVolume(name)
	sub, part := l.node.ParseSubPath(name)
	var found []*Volume
	for _, v := range l.survey.Volumes {
		switch {
		case v.Pod.UID != owner.PodUID:
		case whole && v.Plugin == place.Plugin && v.Name == place.Name,
			part && v.Name == sub.Volume && sub.Container == owner.Container,
			v.Plugin == HostPathPlugin && v.Point == path.Clean(told):
			found = append(found, v)
		}
	}
	if len(found) == 0 && whole && place.PodUID == owner.PodUID && l.selection.has(place.PodUID, place.Name) {
		found = append(found, l.unmounted(place))
	}
	return found
}

// unmounted adds a volume that a container has, and at whose place nothing is mounted any more.
func (l *look) unmounted(place kubelet.Volume) *Volume {
	v := l.newVolume(place)
	l.complete(v)
	v.NoSourceReason = fmt.Sprintf("nothing is mounted at %q", v.Point)
	if m, ok := l.at[v.Point]; ok {
		v.NoSourceReason = fmt.Sprintf("what is mounted at %q is of type %q, which is another volume", v.Point, m.FSType)
	}
	return v
}

// fits tells whether the copy in a container is what its pod's spec asks for, and can be got at.
func (l *look) fits(c *Copy, s *otherNamespace) (bool, string) {
	v := c.volume
	table := l.tableOf(s)
	if table == nil {
		return false, "its mount table cannot be read"
	}
	top, ok := table.Top(c.Point)
	switch {
	case !ok || top.ID != c.ID:
		return false, "it is not what its processes see there: another mount hides it"
	case len(table.Children(c.ID)) > 0:
		return false, "other mounts lie on it"
	case v.Mount.ID != 0 && deviceOf(top) != deviceOf(v.Mount.Mount) && deviceOf(top) != v.location.disk &&
		(top.FSType != v.Mount.FSType || top.Source != v.Mount.Source):
		return false, fmt.Sprintf("it is of type %q from %q, and the volume of type %q from %q: it is not known ever to have been that volume",
			top.FSType, top.Source, v.Mount.FSType, v.Mount.Source)
	}
	sub, part := l.node.ParseSubPath(l.node.OwnPath(c.HostPath, c.Pod.UID))
	switch {
	case part != (c.SubPath != ""):
		return false, fmt.Sprintf("the runtime made it from %q, and it is of directory %q of the volume", c.HostPath, c.SubPath)
	case v.pod == nil && part:
		return false, "the pod's spec is not known, so neither is which directory of the volume belongs there"
	case v.pod == nil:
	case part:
		want, ok := subpath.Find(l.node, v.pod, l.node.SubPathPoint(sub))
		if !ok || !at(want.Mount, c.Path) {
			return false, fmt.Sprintf("the pod's spec does not ask for directory %q of the volume at %q", c.SubPath, c.Path)
		}
		if whyNot := c.name(want); whyNot != "" {
			return false, whyNot
		}
	case !mounts(v, c):
		return false, fmt.Sprintf("the pod's spec does not ask for this volume at %q in container %q", c.Path, c.Container)
	}
	return true, fmt.Sprintf("the container runtime has mounted it into container %q of pod %s/%s from %q", c.Container, c.Pod.Namespace,
		c.Pod.Name, c.HostPath)
}

// readOnly tells whether the pod was given the volume there, or at all, to read alone. The mount that is there need not be
// the one that the runtime has made: who may mount in a container, or in a namespace made in it, has made it as he likes.
func (c *Copy) readOnly() bool {
	if c.told != nil && c.told.ReadOnly || sys.ParseMountAttr(c.volume.Mount.Options).Has(sys.AttrReadOnly) {
		return true
	}
	return !c.onHost && c.volume.pod != nil && slices.ContainsFunc(volumeMounts(c.volume.pod, c.Container), func(m corev1.VolumeMount) bool {
		return m.ReadOnly && at(m, c.Path)
	})
}

func at(m corev1.VolumeMount, name string) bool {
	return path.Clean("/"+m.MountPath) == path.Clean("/"+name)
}

// mounts tells whether the spec has the container mount the volume, and not a directory of it, at the path of the copy.
func mounts(v *Volume, c *Copy) bool {
	for _, m := range volumeMounts(v.pod, c.Container) {
		if !at(m, c.Path) || m.SubPath != "" || m.SubPathExpr != "" {
			continue
		}
		for _, spec := range v.pod.Spec.Volumes {
			if spec.Name == m.Name && v.mayBe(spec) {
				return true
			}
		}
	}
	return false
}

// mayBe tells whether the volume can be that of the spec. The kubelet calls one that comes from a claim by another name.
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
