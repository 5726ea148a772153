// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"maps"
	"path"
	"slices"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// deviceSigns are the signs that something is on a device.
type deviceSigns struct {
	// devices are the block devices whose use holds this one, and superblockNumbers the numbers that files and mounts on it
	// show.
	devices, superblockNumbers map[blockdev.Number]bool
	btrfs                      map[string]bool            // names of the members of a btrfs on it
	byUniqueID                 map[uint64]blockdev.Number // mounts on it, by unique ID
	byMountInfoID              map[int]blockdev.Number    // the same by the number in mountinfo
	byID                       map[uint64]mountns.Mount   // the same by each number that statx may give: unique IDs are above 2³¹
}

// marks are the signs for a job. If the mounts of one namespace were read from mountinfo, they have no unique IDs: then no mount is known by
// its own, as a file of that namespace would be on none of them.
func (s *deviceSigns) marks() deviceMarks {
	m := deviceMarks{
		Devices: slices.Collect(maps.Keys(s.devices)), Superblocks: slices.Collect(maps.Keys(s.superblockNumbers)), MountInfoIDs: s.byMountInfoID,
	}
	if len(s.byUniqueID) == len(s.byMountInfoID) {
		m.UniqueIDs = s.byUniqueID
	}
	return m
}

// isMember reports whether a btrfs that was mounted from source is the searched one. The source is the kernel's name of
// a member's node. If it was named otherwise, only the node itself identifies it.
func (s *deviceSigns) isMember(system blockdev.Sys, source string) bool {
	if d, err := system.Resolve(source); err == nil {
		return s.btrfs[d.Name]
	}
	return s.btrfs[path.Base(source)]
}
