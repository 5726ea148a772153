// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/kubelet"
)

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
