// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// FindAbandoned is Find for every block device that is mounted in some namespace, but not in host: the host has
// unmounted it, and another namespace keeps it. After them come the file systems on no device of which that is true, if
// one of their mounts is wanted. Those that go meanwhile are left out. The survey is that of the search for them.
func (f *Finder) FindAbandoned(ctx context.Context, host mountns.Namespace, wanted func(mountns.Mount) bool) ([]*Report, mountns.Survey, error) {
	searches, survey, err := f.searchAbandoned(host, wanted)
	var reports []*Report
	if err == nil && len(searches) > 0 {
		reports, err = finishAll(ctx, f.Pass, searches)
	}
	if err != nil {
		return nil, survey, fmt.Errorf("find devices that the host no longer mounts: %w", err)
	}
	return reports, survey, nil
}

// maxFileSystems is how many file systems on no device are searched for. A namespace can make any number of them: the first of
// each namespace comes before the second of another.
const maxFileSystems = 256

// chooseFileSystems bounds those file systems, and makes each number one that stands for a device.
func chooseFileSystems(all []mountns.FileSystem, survey *mountns.Survey) (chosen []blockdev.Device) {
	type candidate struct {
		blockdev.Number
		turn int
	}
	var candidates []candidate
	turns := map[uint64]int{}
	for _, fs := range all {
		candidates = append(candidates, candidate{blockdev.Number{Major: fs.Mount.Major, Minor: fs.Mount.Minor}, turns[fs.Mount.Namespace.Inode]})
		turns[fs.Mount.Namespace.Inode]++
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return cmp.Compare(a.turn, b.turn) })
	if more := len(all) - maxFileSystems; more > 0 {
		survey.Skipped = append(survey.Skipped, fmt.Sprintf("%d file systems that other mount namespaces have mounted in directories of volumes", more))
		candidates = candidates[:maxFileSystems]
	}
	for _, c := range candidates {
		chosen = append(chosen, blockdev.Device{Number: c.Number, Name: c.String(), Kind: blockdev.Anonymous})
	}
	return chosen
}

// searchAbandoned begins the search for each of those devices.
func (f *Finder) searchAbandoned(host mountns.Namespace, wanted func(mountns.Mount) bool) ([]*holderSearch, mountns.Survey, error) {
	mounted, seen, survey, err := f.Pass.FileSystemsOutside(host)
	if err != nil {
		return nil, survey, err
	}
	if !seen {
		return nil, survey, fmt.Errorf("nothing is mounted in the host's namespace %s: %w", host, mountns.ErrGone)
	}
	var devices []blockdev.Device
	var onNone []mountns.FileSystem
	for _, fs := range mounted {
		switch device, err := f.DeviceOf(fs.Mount.Mount); {
		case err == nil && device.Kind != blockdev.Anonymous:
			devices = append(devices, device)
		case err == nil && wanted(fs.Mount):
			onNone = append(onNone, fs)
		}
	}
	devices = append(devices, chooseFileSystems(onNone, &survey)...)
	if len(devices) == 0 {
		return nil, survey, nil
	}
	all, err := f.Sys.All()
	if err != nil {
		return nil, survey, err
	}
	var searches []*holderSearch
	for _, device := range devices {
		switch s, err := f.newSearch(device, all); {
		case isGone(err):
		case err != nil:
			return nil, survey, fmt.Errorf("device %q: %w", device.Name, err)
		default:
			searches = append(searches, s)
		}
	}
	return searches, survey, nil
}

// finishAll does the common part of all the searches once.
func finishAll(ctx context.Context, pass *mountns.Pass, searches []*holderSearch) ([]*Report, error) {
	if err := scanMounts(pass, searches); err != nil {
		return nil, err
	}
	var reports []*Report
	for _, s := range searches {
		switch err := s.searchNonMounts(ctx); {
		case isGone(err):
		case err != nil:
			return nil, fmt.Errorf("device %q: %w", s.report.Device.Name, err)
		case !s.report.Busy && !slices.ContainsFunc(s.report.Holders, func(h Holder) bool { return !h.Inferred || s.report.Untested != nil }):
			// The last namespace that had it mounted has ended since. The inferred layer of an overlay is no holder of a device that was tested.
		default:
			reports = append(reports, s.report)
		}
	}
	return reports, nil
}

// isGone reports whether err only means that a device is no more.
func isGone(err error) bool {
	return errors.Is(err, blockdev.ErrNotFound) || errors.Is(err, blockdev.ErrChanged)
}

// DeviceOf is the block device that the file system of a mount is on, or the number that stands for one. A btrfs shows a
// number of its own, and the node of one of its devices as its source.
func (f *Finder) DeviceOf(m mountinfo.Mount) (blockdev.Device, error) {
	if m.FSType == "btrfs" {
		return f.Sys.Resolve(m.Source)
	}
	return f.Sys.Resolve(blockdev.Number{Major: m.Major, Minor: m.Minor}.String())
}
