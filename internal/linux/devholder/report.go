// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"slices"

	"kubediag.org/kubediag/internal/linux/blockdev"
)

// maxNamedHolders is how many different holders are named that are no mounts: more of
// them say nothing new.
const maxNamedHolders = 1000

// holderKey identifies a holder. Processes that agree in it share one holder.
type holderKey struct {
	kind         Kind
	path, detail string
	through      int // the number of the mount in mountinfo
}

// reportBuilder fills in the report about a device, and knows if the holders explain why the device is busy.
type reportBuilder struct {
	report *Report
	// explained holds the superblocks, by Number, that have a holder.
	explained  map[blockdev.Number]bool
	busyProven bool              // anything was found that makes the device busy
	entries    map[holderKey]int // index in report.Holders
}

// addHolder notes a holder that is no mount.
func (b *reportBuilder) addHolder(holder Holder) {
	key := holderKey{holder.Kind, holder.Path, holder.Detail, holder.Through.ID}
	if i, known := b.entries[key]; known {
		pids := &b.report.Holders[i].PIDs
		for _, pid := range holder.PIDs {
			if !slices.Contains(*pids, pid) {
				*pids = append(*pids, pid)
			}
		}
		return
	}
	if len(b.entries) >= maxNamedHolders {
		b.report.Coverage.Unnamed++
		return
	}
	b.entries[key] = len(b.report.Holders)
	b.report.Holders = append(b.report.Holders, holder)
}

// markExplained notes that something holds the superblock with that number. Only a btrfs has a number that is no
// device's; its mounts alone show it.
func (b *reportBuilder) markExplained(number blockdev.Number) {
	b.busyProven = true
	b.explained[number] = true
	if number.Major == 0 {
		b.explained[blockdev.Number{}] = true
	}
}

// busyUnexplained reports whether the search found no holder of a live superblock, or none of a device that is busy, or
// may be.
func (b *reportBuilder) busyUnexplained() bool {
	for _, fs := range b.report.FileSystems {
		if !b.explained[fs.Number] {
			return true
		}
	}
	return (b.report.Busy || b.report.Untested != nil) && !b.busyProven
}
