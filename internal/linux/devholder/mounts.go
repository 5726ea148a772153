// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"maps"
	"slices"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// scanMounts goes over the mounts of the machine once for all the searches, and finds the holders of the namespaces
// that have a mount of one.
func scanMounts(pass *mountns.Pass, searches []*holderSearch) error {
	if err := placeBtrfs(pass, searches); err != nil {
		return err
	}
	wanted := map[blockdev.Number]bool{}
	for _, s := range searches {
		maps.Copy(wanted, s.superblockNumbers)
	}
	found, survey, err := pass.MatchingMounts(func(b *mountns.MountBrief) bool {
		return wanted[blockdev.Number{Major: b.Major, Minor: b.Minor}]
	})
	if err != nil {
		return err
	}
	var namespaces []mountns.Namespace
	for _, m := range found {
		if last := len(namespaces) - 1; last < 0 || namespaces[last] != m.Namespace {
			namespaces = append(namespaces, m.Namespace)
		}
	}
	holders := map[uint64][]mountns.Holder{}
	if len(namespaces) > 0 {
		var asked mountns.Survey
		if holders, asked, err = pass.Holders(namespaces); err != nil {
			return err
		}
		survey.AddDenied(asked.DeniedPIDs)
		survey.Skipped = append(survey.Skipped, asked.Skipped...)
	}
	for _, s := range searches {
		s.report.Coverage.Mounts = survey
		s.addMounts(found, holders)
	}
	return nil
}

// placeBtrfs finds the number of each btrfs that is searched for: no device has this number, and only the mounts of the
// btrfs show it.
func placeBtrfs(pass *mountns.Pass, searches []*holderSearch) error {
	if !slices.ContainsFunc(searches, func(s *holderSearch) bool { return len(s.btrfs) > 0 }) {
		return nil
	}
	all, _, err := pass.FileSystems()
	for _, fs := range all {
		if fs.Mount.FSType != "btrfs" {
			continue
		}
		for _, s := range searches {
			if s.isMember(s.sys, fs.Mount.Source) {
				s.superblockNumbers[blockdev.Number{Major: fs.Mount.Major, Minor: fs.Mount.Minor}] = true
			}
		}
	}
	return err
}

// addMounts notes the mounts that are on the device.
func (s *holderSearch) addMounts(found []mountns.Mount, holders map[uint64][]mountns.Holder) {
	for _, mount := range found {
		number := blockdev.Number{Major: mount.Major, Minor: mount.Minor}
		if !s.superblockNumbers[number] {
			continue
		}
		h := Holder{Kind: Mount, Mount: mount, NamespaceHolders: holders[mount.Namespace.Inode], Path: mount.Point}
		for _, k := range h.NamespaceHolders {
			if k.PID != 0 {
				h.PIDs = append(h.PIDs, k.PID)
			}
			h.Mount.Namespace = h.Mount.Namespace.Through(k)
		}
		slices.Sort(h.PIDs)
		h.PIDs = slices.Compact(h.PIDs)
		if len(h.NamespaceHolders) == 0 {
			h.Detail = "what keeps its namespace alive was not found: an open mount table, or a descriptor in a socket"
			if !sys.SeesEverything() {
				h.Detail += ", or a process that may not be looked into or does not show here"
			}
		}
		if number != s.report.Device.Number {
			h.Detail = joinDetails(h.Detail, "file system on device "+number.String())
		}
		s.report.Holders = append(s.report.Holders, h)
		if s.report.Device.Kind == blockdev.Anonymous && len(s.report.FileSystems) == 0 {
			s.report.FileSystems = []blockdev.FileSystem{{Type: mount.FSType, Number: number, Evidence: "mounted at " + mount.Point}}
		}
		s.byID[uint64(mount.ID)], s.byMountInfoID[mount.ID] = h.Mount, number
		if mount.Unique != 0 {
			s.byID[mount.Unique], s.byUniqueID[mount.Unique] = h.Mount, number
		}
		s.markExplained(number)
	}
}

// joinDetails puts two details into one.
func joinDetails(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}
