// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"slices"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// Observe lists the mounts of a table that lie at the kubelet's root or below, in the table's order. The directory of the pods may
// lie elsewhere.
func Observe(l *kubelet.Layout, table *mountinfo.Table) []Mount {
	return observe(table, func(point string) bool {
		return mountinfo.Within(l.Root, point) || mountinfo.Within(l.PodsDir(), point)
	})
}

// ObservePods is Observe of the mounts in the directories of some pods, by their UIDs. The links of these pods are evaluated as with all mounts.
func ObservePods(l *kubelet.Layout, table *mountinfo.Table, uids map[string]bool) []Mount {
	return observe(table, func(point string) bool {
		way, below := mountinfo.Below(l.PodsDir(), point)
		uid, _, _ := strings.Cut(way, "/")
		return below && uids[uid]
	})
}

func observe(table *mountinfo.Table, wanted func(point string) bool) (mounts []Mount) {
	visible := map[string]int{} // the number of the mount that a lookup of a point reaches
	for _, m := range table.Mounts() {
		if !wanted(m.Point) {
			continue
		}
		top, known := visible[m.Point]
		if !known {
			if at, ok := table.On(m.Point); ok {
				top = at.ID
			}
			visible[m.Point] = top
		}
		hidden := top != m.ID
		mounts = append(mounts, Mount{
			Point: m.Point, Device: strconv.FormatUint(uint64(m.Major), 10) + ":" + strconv.FormatUint(uint64(m.Minor), 10), FSType: m.FSType, Hidden: hidden,
			Kept: hidden && m.Major != 0 && !isShown(table, m.Major, m.Minor), Deleted: m.Deleted(),
			// The kernel begins both lists of options with ro or rw (show_mountinfo of fs/proc_namespace.c).
			ReadOnly: strings.HasPrefix(m.Options, "ro") || m.FSType == "tmpfs" && strings.HasPrefix(m.SuperOptions, "ro"),
		})
	}
	return mounts
}

// isShown reports whether a lookup of the point of any mount of a device reaches it.
func isShown(table *mountinfo.Table, major, minor uint32) bool {
	return slices.ContainsFunc(table.OfDevice(major, minor), func(m mountinfo.Mount) bool {
		top, ok := table.Top(m.Point)
		return ok && top.ID == m.ID
	})
}
