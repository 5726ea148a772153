// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"path"
	"slices"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/mountstate"
)

// diskDir returns the directory of a file system that a path of the host is, as the mount table has it.
func (h *hostMounts) diskDir(point string) (disk device, dir string, ok bool) {
	on, ok := h.table.On(point)
	if !ok {
		return device{}, "", false
	}
	below, ok := mountinfo.Below(on.Point, point)
	return deviceOf(on), path.Join(unmarkedRoot(on), below), ok
}

// unstagedDir returns the staging path of a volume if nothing is mounted there and the pod's mount is of that directory, or
// of one in it; else it is empty.
func (h *hostMounts) unstagedDir(of *kubelet.VolumeRecord, m mountinfo.Mount) string {
	for _, point := range h.node.StagingPoints(of.Driver, of.Handle, of.PersistentVolume) {
		if _, mounted := h.visibleMounts[point]; mounted || m.ID == 0 {
			continue
		}
		if disk, dir, ok := h.diskDir(point); ok && disk == deviceOf(m) {
			if _, in := mountinfo.Below(dir, unmarkedRoot(m)); in {
				return point
			}
		}
	}
	return ""
}

// plainDir is the place of a volume that the kubelet has recorded and that nothing is mounted at.
type plainDir struct {
	place kubelet.Volume
	point string
	dir   string // in its file system
	noted bool
}

// plainDirs lists the places of CSI volumes that are recorded and not mounted, by the device that they lie on. It is normal
// for a pod that waits for its volumes.
func (e *enumerator) plainDirs(ctx context.Context) (map[device][]*plainDir, error) {
	found := map[device][]*plainDir{}
	err := e.eachPlace(ctx, func(place kubelet.Volume) {
		if place.Plugin != kubelet.CSIPlugin || !e.scope.Includes(place.PodUID, place.Name) {
			return
		}
		point := e.host.node.VolumePoint(place)
		if _, mounted := e.host.visibleMounts[point]; mounted {
			return
		}
		if _, err := kubelet.ReadVolumeRecordAt(e.host.table, point); err != nil {
			return
		}
		if disk, dir, ok := e.host.diskDir(point); ok {
			found[disk] = append(found[disk], &plainDir{place: place, point: point, dir: dir})
		}
	})
	return found, err
}

// plainDirOf is the plain directory, in the place of a volume, that a mount of another namespace is of; nil if there is none.
func plainDirOf(plain map[device][]*plainDir, m mountns.Mount) *plainDir {
	for _, p := range plain[deviceOf(m.Mount)] {
		if _, in := mountinfo.Below(p.dir, unmarkedRoot(m.Mount)); in {
			return p
		}
	}
	return nil
}

// takePlainDir adds a volume whose plain directory a container of its pod has: what that writes goes to the node's own disk. If the runtime
// does not know the container, the volume is not judged. It is called inside the kubelet's namespace.
func (s *copySearch) takePlainDir(p *plainDir, m mountns.Mount) {
	other := s.namespaces.otherNamespaceOf(m.Namespace)
	if p.noted || other.gone {
		return
	}
	p.noted = true
	if owner := other.owner; owner == nil || other.workloadMade || owner.PodUID != p.place.PodUID {
		s.enumerator.seen.Unknown.AddPlace(mountstate.Place{Pod: s.enumerator.faultPod(p.place.PodUID), Volume: p.place.Name, Point: p.point, Reason: fmt.Sprintf(
			"nothing is mounted there, and mount namespace %s has that directory of the node's own disk at %q: what is written there does not "+
				"get into the volume", m.Namespace, m.Point)})
		return
	}
	v := s.enumerator.volumeAt(p.place, mountns.Mount{})
	v.Mismatch.PlainAt = fmt.Sprintf("container %q at %q", other.owner.Container, m.Point)
	v.Staging, v.NoStagingReason = nil, fmt.Sprintf("nothing is mounted at %q, so there is no mount to replace", p.point)
	names := namesIn(mountns.View{}.LookupNotHanging(p.point)) // a mount may have come meanwhile
	health := &Health{Evidence: Evidence{Volume: *v}, Replacement: Replacement{NoSourceReason: v.NoStagingReason, WrittenToNodeDisk: names}}
	health.Verdict = Judge(health.Evidence)
	s.volumes = append(s.volumes, health)
}

// diskUse has the places of the kubelet at which CSI drivers have mounted whole file systems of disks, by device, and the records beside them as
// far as they were read; nil for one that cannot be read.
type diskUse struct {
	places  map[device][]string
	records map[string]*kubelet.VolumeRecord
}

func newDiskUse(h *hostMounts) *diskUse {
	use := &diskUse{map[device][]string{}, map[string]*kubelet.VolumeRecord{}}
	for point, m := range h.visibleMounts {
		if m.Major == 0 || m.Root != "/" {
			continue
		}
		place, csi := h.node.ParseVolume(point)
		if csi = csi && place.Plugin == kubelet.CSIPlugin; !csi {
			csi, _ = h.node.ParseStaging(point)
		}
		if csi {
			use.places[deviceOf(m)] = append(use.places[deviceOf(m)], point)
		}
	}
	for _, points := range use.places {
		slices.Sort(points)
	}
	return use
}

// otherVolume names another volume that has the whole file system of the same disk, with its place; empty if there is none. A driver may give
// many volumes directories of one disk; the disk itself belongs to one, unless it is an image that pods have inline, under handles of their own. It is called inside the kubelet's namespace.
func (e *enumerator) otherVolume(of *Volume) string {
	m := of.Mount.Mount
	if of.Staging != nil {
		m = of.Staging.Mount.Mount
	}
	if m.Major == 0 || m.Root != "/" || of.Record.Lifecycle == "Ephemeral" {
		return ""
	}
	if e.disks == nil {
		e.disks = newDiskUse(e.host)
	}
	own := append(e.host.node.StagingPoints(of.Record.Driver, of.Record.Handle, of.Record.PersistentVolume), of.Point)
	for _, point := range e.disks.places[deviceOf(m)] {
		if slices.Contains(own, point) {
			continue
		}
		record, read := e.disks.records[point]
		if !read {
			record, _ = kubelet.ReadVolumeRecordAt(e.host.table, point)
			e.disks.records[point] = record
		}
		if record != nil && !record.Same(of.Record) {
			return fmt.Sprintf("%s at %q", record, point)
		}
	}
	return ""
}
