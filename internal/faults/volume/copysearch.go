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
	namespaces *namespaces // other than the kubelet's
	coverage   *Coverage
	volumes    []*Health // a volume that only a container has any more is added
	wanted     map[device][]*Health
	counts     map[string]int // of copies, by container
}

// findCopies adds to the volumes the copies of them that are broken or may be. It returns the volumes, and those that only
// a container has any more.
func (i *Inspector) findCopies(ctx context.Context, e *enumerator, volumes []*Health, coverage *Coverage) ([]*Health, error) {
	s := &copySearch{
		enumerator: e, volumes: volumes, coverage: coverage, counts: map[string]int{},
		namespaces: &namespaces{scanner: i.Scanner, runtime: i.Runtime, cache: &i.ownerCache, home: e.namespace, coverage: coverage},
	}
	s.findBinds()
	if i.Scanner == nil {
		coverage.addGap("other mount namespaces were not looked at")
		return s.volumes, nil
	}
	i.ownerCache.forget()
	i.unrelatedMounts.forget()
	err := s.findElsewhere(ctx, &i.unrelatedMounts)
	return s.volumes, err
}

// findElsewhere looks in all other mount namespaces for mounts of the file systems of broken volumes, and for those of a
// kind that may hang which the kubelet's namespace does not have, or no longer. If the whole node is inspected, it passes
// over mounts that are known to be unrelated.
func (s *copySearch) findElsewhere(ctx context.Context, unrelated *unrelatedMounts) error {
	s.wanted = s.wantedDevices()
	candidates, survey, err := s.namespaces.scanner.Matching(func(b *mountns.Brief) bool {
		d := device{b.Major, b.Minor}
		return !b.Namespace.Same(s.namespace) && (s.wanted[d] != nil || b.Major == 0 && b.MayHang && (s.selection.PodUID != "" || !s.devices[d]))
	})
	s.coverage.Namespaces = &survey
	for _, what := range survey.Skipped {
		s.coverage.addGap("not looked at: %s", what)
	}
	if err != nil {
		return err
	}
	candidates = slices.DeleteFunc(candidates, func(m mountns.Mount) bool {
		return !s.mayBeCopy(m) || s.selection.PodUID == "" && unrelated.has(m.Unique)
	})
	if err := s.namespaces.find(ctx, candidates); err != nil {
		return err
	}
	return s.node.Do(ctx, func() error {
		s.namespaces.recordedFirst(candidates)
		for _, m := range candidates {
			s.take(m, unrelated)
		}
		return ctx.Err()
	})
}

// take attributes a candidate, and remembers it if the whole node has no volume that it is of.
func (s *copySearch) take(m mountns.Mount, unrelated *unrelatedMounts) {
	if !s.attribute(m) && s.selection == (Selection{}) && !s.namespaces.of(m.Namespace).noAnswer {
		unrelated.add(m.Unique, struct{}{}, unrelatedFor)
	}
}

// wantedDevices lists the file systems whose mounts are looked for, and the volumes for which. If one pod is inspected, its
// healthy volumes are among them, as a container may have the directory that was there before.
func (s *copySearch) wantedDevices() map[device][]*Health {
	wanted := map[device][]*Health{}
	add := func(d device, v *Health) {
		if !slices.Contains(wanted[d][max(0, len(wanted[d])-1):], v) { // one volume comes after the other
			wanted[d] = append(wanted[d], v)
		}
	}
	for _, v := range s.volumes {
		for _, bind := range v.Copies {
			add(deviceOf(bind.Mount.Mount), v)
		}
		if v.Mount.ID == 0 || v.Code == "" && s.selection.PodUID == "" {
			continue
		}
		add(deviceOf(v.Mount.Mount), v)
		if at := v.location(); at.covered != "" {
			add(at.disk, v)
		}
	}
	return wanted
}

// mayBeCopy reports whether a mount of another namespace is of the directory of one of the volumes, or of a file system
// that a volume may have had before: one that no volume has any more, or that is dead for others still.
func (s *copySearch) mayBeCopy(m mountns.Mount) bool {
	d := deviceOf(m.Mount)
	if (s.selection.PodUID != "" || !s.devices[d] || s.wanted[d] != nil) && mountns.MayHang(m.FSType) {
		return true
	}
	for _, v := range s.wanted[d] {
		if _, ok := v.holds(m.Mount); ok {
			return true
		}
	}
	return false
}

// attribute finds the volume that a mount of another namespace is a copy of, and decides whether it may be replaced. It
// reports whether there is one. It is called inside the kubelet's namespace.
func (s *copySearch) attribute(m mountns.Mount) (related bool) {
	o := s.namespaces.of(m.Namespace)
	m.Namespace = o.ns
	c := &Copy{Mount: m, Decision: Decision{Reason: o.ownerReason}}
	if o.owner != nil && !o.workloadMade {
		c.Pod = fault.Pod{Namespace: o.owner.PodNamespace, Name: o.owner.PodName, UID: o.owner.PodUID}
		c.Container, c.ContainerID = o.owner.Container, o.owner.ContainerID
		c.Decision = s.match(c, o)
	}
	for _, v := range s.wanted[deviceOf(m.Mount)] {
		if c.volume != nil {
			break
		}
		if sub, ok := v.holds(m.Mount); ok {
			c.volume, c.SubPath = v, sub
		}
	}
	v := c.volume
	switch {
	case v == nil:
		return false
	case o.workloadMade || c.Pod.UID != "" && c.Pod.UID != v.Pod.UID || o.outside:
		v.ForeignCopies++ // it is for its owner to repair
	case o.unseen: // root may find that it is foreign
		s.coverage.addGap("a mount of volume %q of pod %q at %q in mount namespace %s could not be judged: %s", v.Name, v.Pod.UID, c.Point,
			c.Namespace, o.ownerReason)
	case s.hasRoom(c):
		if c.Decision.Replaceable {
			c.Decision = s.decide(c, o)
		}
		v.Copies = append(v.Copies, c)
	}
	return true
}

// maxCopies bounds how many copies of one container are judged, or of one mount namespace whose container is not known.
const maxCopies = 64

// hasRoom reports whether there is room for one more copy, and notes once that there is none.
func (s *copySearch) hasRoom(c *Copy) bool {
	whose := fmt.Sprintf("mount namespace %s", c.Namespace)
	if c.ContainerID != "" {
		whose = c.holderName()
	}
	n := s.counts[whose+c.ContainerID]
	if s.counts[whose+c.ContainerID]++; n == maxCopies {
		s.coverage.addGap("%s has more than %d mounts of volumes that are looked at: the others were not judged", whose, maxCopies)
	}
	return n < maxCopies
}

func (h *Holder) holderName() string {
	return fmt.Sprintf("container %q of pod %s/%s", h.Container, h.Pod.Namespace, h.Pod.Name)
}

// match finds the volume of the container's own pod that the runtime's record of the mount names.
func (s *copySearch) match(c *Copy, o *otherNamespace) Decision {
	record, ok := s.recordOf(c, o)
	if !ok || s.selection.PodUID != "" && s.selection.PodUID != c.Pod.UID {
		return refuse("%s has it, and not as a volume of its own", c.holderName())
	}
	volumes := s.volumesAt(record.HostPath, o.owner)
	switch {
	case len(volumes) == 0:
		return refuse("%s has it, and not as a volume of its own", c.holderName())
	case len(volumes) > 1:
		return refuse("%s has it from %q, which may be one of several volumes of that name", c.holderName(), record.HostPath)
	}
	v := volumes[0]
	sub, ok := v.holds(c.Mount.Mount)
	if v.Mount.ID != 0 && !ok {
		return refuse("%s is to have %q there, and what is mounted is no directory of that volume", c.holderName(), record.HostPath)
	}
	c.volume, c.SubPath, c.origin.record = v, sub, &record
	return Decision{Replaceable: true}
}

// recordOf is the runtime's record of what is mounted at the point. A path with a symbolic link of the image in it is
// another in the record: then there must be one record alone of the volume, and nothing mounted where it says.
func (s *copySearch) recordOf(c *Copy, o *otherNamespace) (cri.Mount, bool) {
	var found []cri.Mount
	for _, m := range o.owner.Mounts {
		if path.Clean("/"+m.ContainerPath) == c.Point {
			found = append(found, m) // of two, the later one lies on top
		}
	}
	if len(found) > 0 {
		return found[len(found)-1], true
	}
	table := s.namespaces.tableOf(o)
	if table == nil {
		return cri.Mount{}, false
	}
	for _, m := range o.owner.Mounts {
		_, there := table.Top(path.Clean("/" + m.ContainerPath))
		if volumes := s.volumesAt(m.HostPath, o.owner); !there && len(volumes) == 1 {
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

// volumesAt lists the volumes of the container's pod that a path of the host can mean. One that only the container has any
// more is added to the volumes.
func (s *copySearch) volumesAt(hostPath string, owner *cri.Owner) []*Health {
	name := s.node.OwnPath(hostPath, owner.PodUID)
	place, whole := s.node.ParseVolume(name)
	sub, part := s.node.ParseSubPath(name)
	var found []*Health
	for _, v := range s.volumes {
		switch {
		case v.Pod.UID != owner.PodUID:
		case whole && v.Plugin == place.Plugin && v.Name == place.Name,
			part && v.Name == sub.Volume && sub.Container == owner.Container,
			v.Plugin == HostPathPlugin && v.Point == path.Clean(hostPath):
			found = append(found, v)
		}
	}
	if len(found) == 0 && whole && place.PodUID == owner.PodUID && s.selection.has(place.PodUID, place.Name) {
		found = append(found, s.addUnmounted(place))
	}
	return found
}

func (s *copySearch) addUnmounted(place kubelet.Volume) *Health {
	e := Evidence{Volume: *s.unmounted(place)}
	v := &Health{Evidence: e, Verdict: Judge(e), Replacement: Replacement{NoSourceReason: e.NoStagingReason}}
	s.volumes = append(s.volumes, v)
	return v
}
