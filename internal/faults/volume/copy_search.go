// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"path"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// copySearch searches for the copies of volumes that were judged.
type copySearch struct {
	enumerator        *enumerator
	host              *hostMounts // of the enumerator
	namespaces        *namespaces // other than the kubelet's
	volumes           []*Health   // a volume that only a container has any more is added
	volumesByDevice   map[device][]*Health
	copiesByContainer map[string]int // of copies, by container
	unclaimed         unclaimed
}

// findCopies adds to the volumes the copies of them that are broken or may be. It returns the volumes, and those that
// only a container has any more. A file system of a container that is dead and of no volume is added as one.
//
// In all other mount namespaces it looks for mounts of the file systems of broken volumes, and for those of a kind that may
// hang and that the kubelet's namespace does not have, or no longer.
func (i *Inspector) findCopies(ctx context.Context, e *enumerator, volumes []*Health, prober *batchProber) ([]*Health, error) {
	s := &copySearch{
		enumerator: e, host: e.host, volumes: volumes, copiesByContainer: map[string]int{},
		namespaces: &namespaces{runtime: i.Runtime, cache: &i.ownerCache, kubeletNamespace: e.host.namespace, seen: e.seen},
	}
	s.findBinds()
	s.volumesByDevice = wantedDevices(volumes, e.scope)
	plain, err := e.plainDirs(ctx)
	if err != nil {
		return nil, err
	}
	if s.unclaimed, err = newUnclaimed(ctx, e.host, volumes); err != nil {
		return nil, err
	}
	// A healthy file system that the kubelet's namespace shows is of interest only if certain pods are inspected, or if no volume claims it.
	isWanted := func(d device) bool {
		return len(e.scope.PodUIDs) > 0 || !e.host.shownDevices[d] || s.unclaimed.onHost[d]
	}
	candidates, survey, err := e.host.node.Pass().MatchingMounts(func(b *mountns.MountBrief) bool {
		d := device{b.Major, b.Minor}
		return !b.Namespace.Same(e.host.namespace) && (s.volumesByDevice[d] != nil || plain[d] != nil ||
			b.MayHang && isWanted(d) && (b.Major == 0 || s.unclaimed.onHost[d]))
	})
	e.seen.Coverage.Namespaces = &survey
	e.seen.Unknown.AddSkipped(survey.Skipped...)
	if err != nil {
		return nil, err
	}
	// A mount may also be of an earlier file system of a volume, that no volume has any more or that is dead for others still.
	candidates = slices.DeleteFunc(candidates, func(m mountns.Mount) bool {
		return plainDirOf(plain, m) == nil && (!mountns.MayHang(m.FSType) || !isWanted(deviceOf(m.Mount))) && !s.mayBeCopy(m)
	})
	if err := s.namespaces.findOwners(ctx, candidates); err != nil {
		return nil, err
	}
	err = e.host.node.Do(ctx, func() error {
		s.namespaces.recordedFirst(candidates)
		for _, m := range candidates {
			if p := plainDirOf(plain, m); p != nil {
				s.takePlainDir(p, m)
			} else {
				s.takeCopy(m)
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	if err := s.judgeUnclaimed(ctx, prober); err != nil {
		return nil, err
	}
	return s.volumes, s.judgeOfNode(ctx, prober)
}

// mayBeCopy reports whether a mount may be of a volume whose copies are looked for. On the device of a file system that may hang, each mount
// may be.
func (s *copySearch) mayBeCopy(m mountns.Mount) bool {
	volumes := s.volumesByDevice[deviceOf(m.Mount)]
	return len(volumes) > 0 && mountns.MayHang(m.FSType) || slices.ContainsFunc(volumes, func(v *Health) bool {
		_, ok := v.Evidence.pathInVolume(m.Mount)
		return ok
	})
}

// wantedDevices lists the file systems whose mounts are looked for, and the volumes for which. If certain pods are inspected,
// their healthy volumes are among them, as a container may have the directory that was there before.
func wantedDevices(volumes []*Health, scope mountstate.Scope) map[device][]*Health {
	wanted := map[device][]*Health{}
	add := func(d device, v *Health) {
		if !slices.Contains(wanted[d][max(0, len(wanted[d])-1):], v) { // one volume comes after the other
			wanted[d] = append(wanted[d], v)
		}
	}
	for _, health := range volumes {
		for _, bind := range health.Copies {
			add(deviceOf(bind.Mount.Mount), health)
		}
		if health.Evidence.Mount.ID == 0 || health.Evidence.Origin.Inside || health.Verdict.Code == "" && len(scope.PodUIDs) == 0 {
			continue
		}
		add(deviceOf(health.Evidence.Mount.Mount), health)
		if at := health.Evidence.stagedLocation(); at.Covered != "" {
			add(at.nodeDisk(), health)
		}
	}
	return wanted
}

// takeCopy adds a mount of another namespace to the copies of its volume, if there is one, and decides whether it may be
// replaced. It is called inside the kubelet's namespace.
func (s *copySearch) takeCopy(found mountns.Mount) {
	other := s.namespaces.otherNamespaceOf(found.Namespace)
	if other.gone {
		return
	}
	found.Namespace = other.namespace
	copied := &Copy{Mount: found, Decision: Decision{Reason: other.ownerReason}}
	if other.owner != nil && !other.workloadMade {
		copied.Holder.Pod = fault.Pod{Namespace: other.owner.PodNamespace, Name: other.owner.PodName, UID: other.owner.PodUID}
		copied.Holder.Container, copied.Holder.ContainerID = other.owner.Container, other.owner.ContainerID
		copied.Decision = s.matchRecord(copied, other)
	}
	for _, v := range s.volumesByDevice[deviceOf(found.Mount)] {
		if copied.volume != nil {
			break
		}
		if sub, ok := v.Evidence.pathInVolume(found.Mount); ok {
			copied.volume, copied.SubPath = v, sub
		}
	}
	health := copied.volume
	switch {
	case health == nil: // it is of no volume
		s.addUnclaimed(copied, other)
	case other.workloadMade || copied.Holder.Pod.UID != "" && copied.Holder.Pod.UID != health.Evidence.Pod.UID || other.outsideContainers:
		health.Surroundings.ForeignCopies++ // it is for its owner to repair
	case other.processesHidden: // root may find that it is foreign
		s.enumerator.seen.Unknown.AddPlace(copied.unknownPlace(health, other.ownerReason))
	case s.hasRoom(copied):
		if copied.Decision.Replaceable {
			copied.Decision = s.decideInContainer(copied, other)
		}
		health.Copies = append(health.Copies, copied)
	}
}

// maxCopies bounds how many copies of one container are judged, or of one mount namespace whose container is not known.
const maxCopies = 64

// hasRoom reports whether there is room for one more copy, and notes once that there is none.
func (s *copySearch) hasRoom(c *Copy) bool {
	whose := fmt.Sprintf("mount namespace %s", c.Mount.Namespace)
	if c.Holder.ContainerID != "" {
		whose = c.Holder.describe()
	}
	n := s.copiesByContainer[whose+c.Holder.ContainerID]
	if s.copiesByContainer[whose+c.Holder.ContainerID]++; n == maxCopies {
		s.enumerator.seen.Unknown.AddGap("mounts of volumes in "+whose, fmt.Sprintf("there are more than %d, and the others were not judged", maxCopies))
	}
	return n < maxCopies
}

func (h *Holder) describe() string {
	return fmt.Sprintf("container %q of pod %s/%s", h.Container, h.Pod.Namespace, h.Pod.Name)
}

// matchRecord finds the volume of the container's own pod that the runtime's record of the mount names.
func (s *copySearch) matchRecord(copied *Copy, o *otherNamespace) Decision {
	record, ok := s.runtimeRecordOf(copied, o)
	if !ok || !s.enumerator.scope.Includes(copied.Holder.Pod.UID, s.enumerator.scope.Volume) {
		return refuseReplacement("%s has it, and not as a volume of its own", copied.Holder.describe())
	}
	volumes := s.volumesAt(record.HostPath, o.owner)
	switch {
	case len(volumes) == 0:
		return refuseReplacement("%s has it, and not as a volume of its own", copied.Holder.describe())
	case len(volumes) > 1:
		return refuseReplacement("%s has it from %q, which may be one of several volumes of that name", copied.Holder.describe(), record.HostPath)
	}
	v := volumes[0]
	sub, ok := v.Evidence.pathInVolume(copied.Mount.Mount)
	if v.Evidence.Mount.ID != 0 && !ok {
		return refuseReplacement("%s should have %q there, but the mount is no directory of that volume", copied.Holder.describe(), record.HostPath)
	}
	copied.volume, copied.SubPath, copied.origin.runtimeRecord = v, sub, &record
	pod := v.Evidence.spec.pod
	if v.Evidence.SpecName != "" || pod == nil {
		return Decision{Replaceable: true}
	}
	// The name in the spec of a volume from a claim is found by its place in the container: the runtime's record has there the directory of the
	// PersistentVolume.
	for _, spec := range podinfo.VolumesOf(pod, copied.Holder.Container) {
		if podinfo.FromClaim(spec) && slices.ContainsFunc(podinfo.VolumeMounts(pod, copied.Holder.Container), func(m corev1.VolumeMount) bool {
			return m.Name == spec.Name && isMountedAt(m, record.ContainerPath)
		}) {
			v.Evidence.SpecName = spec.Name
			break
		}
	}
	return Decision{Replaceable: true}
}

// runtimeRecordOf is the runtime's record of what is mounted at the point. A path with a symbolic link of the image in
// it is another in the record: then there must be one record alone of the volume, and nothing mounted where it says.
func (s *copySearch) runtimeRecordOf(copied *Copy, other *otherNamespace) (cri.Mount, bool) {
	if record, ok := other.records[copied.Mount.Point]; ok {
		return record, true
	}
	if other.unplaced == nil {
		other.unplaced = sync.OnceValue(func() (found []unplacedRecord) {
			table := s.namespaces.tableOf(other)
			if table == nil {
				return nil
			}
			for _, m := range other.owner.Mounts {
				if _, there := table.Top(path.Clean("/" + m.ContainerPath)); there {
					continue
				}
				if volumes := s.volumesAt(m.HostPath, other.owner); len(volumes) == 1 {
					found = append(found, unplacedRecord{m, volumes[0]})
				}
			}
			return found
		})
	}
	var found []cri.Mount
	for _, r := range other.unplaced() {
		if _, ok := r.volume.Evidence.pathInVolume(copied.Mount.Mount); ok {
			found = append(found, r.record)
		}
	}
	if len(found) != 1 {
		return cri.Mount{}, false
	}
	return found[0], true
}

// unplacedRecord is the runtime's record of a mount of one volume, with nothing mounted at its path.
type unplacedRecord struct {
	record cri.Mount
	volume *Health
}

// volumesAt lists the volumes of the container's pod that a path of the host can mean. One that only the container has
// any more is added to the volumes.
func (s *copySearch) volumesAt(hostPath string, owner *cri.Owner) []*Health {
	name := s.host.node.OwnPath(hostPath, owner.PodUID)
	place, whole := s.host.node.ParseVolume(name)
	sub, part := s.host.node.ParseSubPath(name)
	var found []*Health
	for _, v := range s.volumes {
		switch {
		case v.Evidence.Pod.UID != owner.PodUID || v.Evidence.Origin.Inside:
		case whole && v.Evidence.Plugin == place.Plugin && v.Evidence.Name == place.Name,
			part && v.Evidence.Name == sub.Volume && sub.Container == owner.Container,
			v.Evidence.Plugin == HostPathPlugin && (v.Evidence.Point == path.Clean(hostPath) || v.Evidence.Link == path.Clean(hostPath)):
			found = append(found, v)
		}
	}
	if len(found) == 0 && whole && place.PodUID == owner.PodUID && s.enumerator.scope.Includes(place.PodUID, place.Name) {
		// It is not mounted at its place any more.
		e := Evidence{Volume: *s.enumerator.volumeAt(place, mountns.Mount{})}
		e.NoStagingReason = fmt.Sprintf("nothing is mounted at %q", e.Point)
		if m, ok := s.host.visibleMounts[e.Point]; ok {
			e.NoStagingReason = fmt.Sprintf("the mount at %q is of type %q: it is another volume", e.Point, m.FSType)
		}
		v := &Health{Evidence: e, Verdict: Judge(e), Replacement: Replacement{NoSourceReason: e.NoStagingReason}}
		s.volumes, found = append(s.volumes, v), append(found, v)
	}
	return found
}

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
