// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"path"
	"slices"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// copySearch searches for the copies of volumes that were judged.
type copySearch struct {
	*enumerator
	namespaces        *namespaces // other than the kubelet's
	volumes           []*Health   // a volume that only a container has any more is added
	volumesByDevice   map[device][]*Health
	copiesByContainer map[string]int // of copies, by container
	plain             map[device][]*plainDir
	unclaimed         unclaimed
	prober            *batchProber
}

// findCopies adds to the volumes the copies of them that are broken or may be. It returns the volumes, and those that
// only a container has any more. A file system of a container that is dead and of no volume is added as one.
func (i *Inspector) findCopies(ctx context.Context, e *enumerator, volumes []*Health, prober *batchProber) ([]*Health, error) {
	search := &copySearch{
		enumerator: e, volumes: volumes, copiesByContainer: map[string]int{}, prober: prober,
		namespaces: &namespaces{runtime: i.Runtime, cache: &i.ownerCache, kubeletNamespace: e.namespace, seen: e.seen},
	}
	search.findBinds()
	err := search.findElsewhere(ctx)
	return search.volumes, err
}

// findElsewhere looks in all other mount namespaces for mounts of the file systems of broken volumes. It also looks
// for those of a kind that may hang and that the kubelet's namespace does not have, or no longer.
func (s *copySearch) findElsewhere(ctx context.Context) error {
	s.volumesByDevice = s.wantedDevices()
	plain, err := s.plainDirs(ctx)
	if err != nil {
		return err
	}
	s.plain = plain
	if s.unclaimed, err = s.newUnclaimed(ctx); err != nil {
		return err
	}
	candidates, survey, err := s.node.Pass().MatchingMounts(func(b *mountns.MountBrief) bool {
		d := device{b.Major, b.Minor}
		return !b.Namespace.Same(s.namespace) && (s.volumesByDevice[d] != nil || s.plain[d] != nil || b.Major == 0 && b.MayHang &&
			(s.scope.PodUID != "" || !s.shownDevices[d]) || b.MayHang && s.unclaimed.onHost[d])
	})
	s.seen.Coverage.Namespaces = &survey
	s.seen.Unknown.AddSkipped(survey.Skipped...)
	if err != nil {
		return err
	}
	for _, m := range candidates {
		s.notePlainDir(m)
	}
	candidates = slices.DeleteFunc(candidates, func(m mountns.Mount) bool { return !s.mayBeCopy(m) })
	if err := s.namespaces.findOwners(ctx, candidates); err != nil {
		return err
	}
	err = s.node.Do(ctx, func() error {
		s.namespaces.recordedFirst(candidates)
		for _, m := range candidates {
			s.attribute(m)
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	return s.judgeUnclaimed(ctx)
}

// wantedDevices lists the file systems whose mounts are looked for, and the volumes for which. If one pod is inspected,
// its healthy volumes are among them, as a container may have the directory that was there before.
func (s *copySearch) wantedDevices() map[device][]*Health {
	wanted := map[device][]*Health{}
	add := func(d device, v *Health) {
		if !slices.Contains(wanted[d][max(0, len(wanted[d])-1):], v) { // one volume comes after the other
			wanted[d] = append(wanted[d], v)
		}
	}
	for _, health := range s.volumes {
		for _, bind := range health.Copies {
			add(deviceOf(bind.Mount.Mount), health)
		}
		if health.Mount.ID == 0 || health.Inside || health.Code == "" && s.scope.PodUID == "" {
			continue
		}
		add(deviceOf(health.Mount.Mount), health)
		if at := health.stagedLocation(); at.Covered != "" {
			add(at.nodeDisk(), health)
		}
	}
	return wanted
}

// mayBeCopy reports whether a mount of another namespace is of the directory of one of the volumes, or of an earlier
// file system of a volume: one that no volume has any more, or that is dead for others still. It may also be of a file
// system that no volume has at all.
func (s *copySearch) mayBeCopy(m mountns.Mount) bool {
	d := deviceOf(m.Mount)
	if (s.scope.PodUID != "" || !s.shownDevices[d] || s.volumesByDevice[d] != nil || s.unclaimed.onHost[d]) && mountns.MayHang(m.FSType) {
		return true
	}
	for _, v := range s.volumesByDevice[d] {
		if _, ok := v.pathInVolume(m.Mount); ok {
			return true
		}
	}
	return false
}

// attribute adds a mount of another namespace to the copies of its volume, if there is one, and decides whether it may be
// replaced. It is called inside the kubelet's namespace.
func (s *copySearch) attribute(found mountns.Mount) {
	other := s.namespaces.otherNamespaceOf(found.Namespace)
	if other.gone {
		return
	}
	found.Namespace = other.namespace
	copied := &Copy{Mount: found, Decision: Decision{Reason: other.ownerReason}}
	if other.owner != nil && !other.workloadMade {
		copied.Pod = fault.Pod{Namespace: other.owner.PodNamespace, Name: other.owner.PodName, UID: other.owner.PodUID}
		copied.Container, copied.ContainerID = other.owner.Container, other.owner.ContainerID
		copied.Decision = s.matchRecord(copied, other)
	}
	for _, v := range s.volumesByDevice[deviceOf(found.Mount)] {
		if copied.volume != nil {
			break
		}
		if sub, ok := v.pathInVolume(found.Mount); ok {
			copied.volume, copied.SubPath = v, sub
		}
	}
	health := copied.volume
	switch {
	case health == nil: // it is of no volume
		s.addUnclaimed(copied, other)
	case other.workloadMade || copied.Pod.UID != "" && copied.Pod.UID != health.Pod.UID || other.outsideContainers:
		health.ForeignCopies++ // it is for its owner to repair
	case other.processesHidden: // root may find that it is foreign
		s.seen.Unknown.AddPlace(copied.unknownPlace(health, other.ownerReason))
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
	whose := fmt.Sprintf("mount namespace %s", c.Namespace)
	if c.ContainerID != "" {
		whose = c.describe()
	}
	n := s.copiesByContainer[whose+c.ContainerID]
	if s.copiesByContainer[whose+c.ContainerID]++; n == maxCopies {
		s.seen.Unknown.AddGap("mounts of volumes in "+whose, fmt.Sprintf("there are more than %d, and the others were not judged", maxCopies))
	}
	return n < maxCopies
}

func (h *Holder) describe() string {
	return fmt.Sprintf("container %q of pod %s/%s", h.Container, h.Pod.Namespace, h.Pod.Name)
}

// matchRecord finds the volume of the container's own pod that the runtime's record of the mount names.
func (s *copySearch) matchRecord(copied *Copy, o *otherNamespace) Decision {
	record, ok := s.runtimeRecordOf(copied, o)
	if !ok || s.scope.PodUID != "" && s.scope.PodUID != copied.Pod.UID {
		return refuseReplacement("%s has it, and not as a volume of its own", copied.describe())
	}
	volumes := s.volumesAt(record.HostPath, o.owner)
	switch {
	case len(volumes) == 0:
		return refuseReplacement("%s has it, and not as a volume of its own", copied.describe())
	case len(volumes) > 1:
		return refuseReplacement("%s has it from %q, which may be one of several volumes of that name", copied.describe(), record.HostPath)
	}
	v := volumes[0]
	sub, ok := v.pathInVolume(copied.Mount.Mount)
	if v.Mount.ID != 0 && !ok {
		return refuseReplacement("%s should have %q there, but the mount is no directory of that volume", copied.describe(), record.HostPath)
	}
	copied.volume, copied.SubPath, copied.origin.runtimeRecord = v, sub, &record
	return Decision{Replaceable: true}
}

// runtimeRecordOf is the runtime's record of what is mounted at the point. A path with a symbolic link of the image in
// it is another in the record: then there must be one record alone of the volume, and nothing mounted where it says.
func (s *copySearch) runtimeRecordOf(copied *Copy, other *otherNamespace) (cri.Mount, bool) {
	var found []cri.Mount
	for _, m := range other.owner.Mounts {
		if path.Clean("/"+m.ContainerPath) == copied.Point {
			found = append(found, m) // of two, the later one lies on top
		}
	}
	if len(found) > 0 {
		return found[len(found)-1], true
	}
	table := s.namespaces.tableOf(other)
	if table == nil {
		return cri.Mount{}, false
	}
	for _, m := range other.owner.Mounts {
		_, there := table.Top(path.Clean("/" + m.ContainerPath))
		if volumes := s.volumesAt(m.HostPath, other.owner); !there && len(volumes) == 1 {
			if _, ok := volumes[0].pathInVolume(copied.Mount.Mount); ok {
				found = append(found, m)
			}
		}
	}
	if len(found) != 1 {
		return cri.Mount{}, false
	}
	return found[0], true
}

// volumesAt lists the volumes of the container's pod that a path of the host can mean. One that only the container has
// any more is added to the volumes.
func (s *copySearch) volumesAt(hostPath string, owner *cri.Owner) []*Health {
	name := s.node.OwnPath(hostPath, owner.PodUID)
	place, whole := s.node.ParseVolume(name)
	sub, part := s.node.ParseSubPath(name)
	var found []*Health
	for _, v := range s.volumes {
		switch {
		case v.Pod.UID != owner.PodUID || v.Inside:
		case whole && v.Plugin == place.Plugin && v.Name == place.Name,
			part && v.Name == sub.Volume && sub.Container == owner.Container,
			v.Plugin == HostPathPlugin && v.Point == path.Clean(hostPath):
			found = append(found, v)
		}
	}
	if len(found) == 0 && whole && place.PodUID == owner.PodUID && s.scope.Includes(place.PodUID, place.Name) {
		found = append(found, s.addUnmounted(place))
	}
	return found
}

func (s *copySearch) addUnmounted(place kubelet.Volume) *Health {
	e := Evidence{Volume: *s.unmountedVolume(place)}
	v := &Health{Evidence: e, Verdict: Judge(e), Replacement: Replacement{NoSourceReason: e.NoStagingReason}}
	s.volumes = append(s.volumes, v)
	return v
}
