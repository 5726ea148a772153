// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

// Finder looks for holders. It may be used by several goroutines.
type Finder struct {
	// Sys holds the block devices.
	Sys blockdev.Sys
	// Runner runs Job; nil: one for each.
	Runner *subprocess.Runner
	// WithProcesses: the search covers processes, overlays and loop devices even if mounts explain by themselves why
	// the device is busy.
	WithProcesses bool
	// Pass is the look at the mounts of the machine; nil: each search looks by itself.
	Pass *mountns.Pass
}

// Find says who holds a device. Whatever mounts it, its partitions, the disk
// that it is a partition of, or the file system whose journal it carries holds
// it, too. blockdev.ErrNotFound, blockdev.ErrChanged: it is gone, or another by
// now. A file system on no device is gone if nothing has it.
func (f *Finder) Find(ctx context.Context, device blockdev.Device) (*Report, error) {
	// The process that looks into all others, if it is wanted in any case, starts while the mounts are listed. If it could not be started,
	// the search itself tries that.
	var begun *subprocess.Begun
	if f.WithProcesses {
		begun, _ = cmp.Or(f.Runner, &subprocess.Runner{}).Begin(ctx, jobOptions())
	}
	defer begun.Drop()
	var search *holderSearch
	var err error
	var all []blockdev.Device // a file system on no device has no parts
	if device.Kind == blockdev.Anonymous {
		all, err = f.Sys.LoopsOver(func(string) bool { return true })
	} else {
		all, err = f.Sys.All()
	}
	if err == nil {
		search, err = f.newSearch(device, all)
	}
	if err == nil {
		err = scanMounts(f.Pass, []*holderSearch{search})
	}
	if err == nil {
		search.begun = begun
		err = search.searchNonMounts(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("find holders of %q: %w", device.Name, err)
	}
	return search.report, nil
}

// holderSearch is the search for the holders of one device.
type holderSearch struct {
	sys           blockdev.Sys
	runner        *subprocess.Runner
	withProcesses bool
	pass          *mountns.Pass
	allDevices    []blockdev.Device // of the machine that may be a part of the device, or be made of a file on it
	// begun is the process for the first job; nil: each job starts its own.
	begun *subprocess.Begun

	deviceSigns
	reportBuilder
	// unansweredLoops are loop devices whose backing file is unknown.
	unansweredLoops []string
	// inferred are holders in case that no other one is found.
	inferred []Holder
}

// newSearch asks the kernel about the device itself, one of all: the truth test, the
// live superblocks, and the kernel's own uses.
func (f *Finder) newSearch(d blockdev.Device, all []blockdev.Device) (*holderSearch, error) {
	signs := deviceSigns{
		devices: map[blockdev.Number]bool{}, superblockNumbers: map[blockdev.Number]bool{}, btrfs: map[string]bool{},
		byUniqueID: map[uint64]blockdev.Number{}, byMountInfoID: map[int]blockdev.Number{},
		byID: map[uint64]mountns.Mount{},
	}
	signs.devices[d.Number], signs.superblockNumbers[d.Number] = true, true
	for _, other := range all {
		switch {
		case other.Parent == d.Name:
			signs.devices[other.Number], signs.superblockNumbers[other.Number] = true, true
		case d.Parent != "" && d.Parent == other.Name: // a descriptor of the disk does not hold the partition
			signs.superblockNumbers[other.Number] = true
		}
	}
	search := &holderSearch{
		sys: f.Sys, runner: f.Runner, withProcesses: f.WithProcesses, pass: f.Pass, allDevices: all,
		deviceSigns:   signs,
		reportBuilder: reportBuilder{report: &Report{Device: d}, explained: map[blockdev.Number]bool{}, entries: map[holderKey]int{}},
	}
	if d.Kind != blockdev.Anonymous { // the kernel shows no superblock without a device but by its mounts and users
		if err := search.testBusy(); err != nil {
			return nil, err
		}
		if err := search.collectNumbers(); err != nil {
			return nil, err
		}
	}
	users, err := search.sys.Users(search.report.Device)
	for _, u := range users {
		holder := Holder{Kind: Swap, Path: u.Path, Detail: u.Evidence}
		switch u.Kind {
		case blockdev.Stacked:
			holder = Holder{Kind: StackedDevice, Path: u.Device.Node(), Detail: u.Evidence}
		case blockdev.SwapFile:
			search.markExplained(u.Device.Number)
		}
		search.addHolder(holder)
		search.busyProven = true
	}
	return search, err
}

// collectNumbers finds the numbers that mounts, files and descriptors which hold the
// device may show.
func (s *holderSearch) collectNumbers() (err error) {
	if s.report.FileSystems, err = s.sys.FileSystems(s.report.Device); err != nil {
		return err
	}
	for _, fs := range s.report.FileSystems {
		if fs.Number != (blockdev.Number{}) {
			s.superblockNumbers[fs.Number] = true
		}
		for _, name := range fs.Members {
			s.btrfs[name] = true
		}
		if fs.Journal {
			s.addHolder(Holder{Kind: Journal, Path: fs.Evidence,
				Detail: "carries the journal of the " + fs.Type + " on device " + fs.Number.String()})
			s.markExplained(fs.Number)
		}
	}
	return nil
}

// searchProcesses looks into every process.
func (s *holderSearch) searchProcesses(ctx context.Context) error {
	marks := s.marks()
	marks.Overlay = slices.ContainsFunc(s.report.FileSystems, func(fs blockdev.FileSystem) bool { return fs.Type == "overlay" })
	return s.runJob(ctx, jobOrder{Job: jobProcesses, Marks: marks}, nil)
}

// searchNonMounts looks at everything that is no mount, if that is called for, and brings
// the report to an end.
func (s *holderSearch) searchNonMounts(ctx context.Context) error {
	if s.withProcesses || !s.busyProven || s.busyUnexplained() {
		s.report.Coverage.Processes = true
		for _, look := range []func(context.Context) error{s.findLoops, s.searchProcesses, s.findOverlays} {
			if err := look(ctx); err != nil {
				return err
			}
		}
	}
	onNoDevice := s.report.Device.Kind == blockdev.Anonymous
	if s.report.Coverage.Processes && (s.busyUnexplained() || onNoDevice && len(s.entries) == 0) {
		s.report.Coverage.Threads = true
		if err := s.runJob(ctx, jobOrder{Job: jobThreads, Marks: s.marks()}, nil); err != nil {
			return err
		}
	}
	if s.busyUnexplained() {
		for _, holder := range s.inferred {
			s.addHolder(holder)
		}
		// The holder may have gone during the search.
		err := s.testBusy()
		if err == nil {
			s.report.FileSystems, err = s.sys.FileSystems(s.report.Device)
		}
		if err != nil {
			return err
		}
	}
	if onNoDevice && !s.busyProven {
		return cmp.Or(ctx.Err(), blockdev.ErrNotFound)
	}
	s.completeReport()
	return ctx.Err()
}

// completeReport completes the report by its conclusions.
func (s *holderSearch) completeReport() {
	r := s.report
	if s.busyUnexplained() {
		r.Hidden = s.hiddenHolders()
	}
	if r.Untested != nil || r.Device.Kind == blockdev.Anonymous {
		r.Busy = s.busyProven || len(r.FileSystems) > 0
	}
	for i := range r.Holders {
		slices.Sort(r.Holders[i].PIDs)
	}
	slices.SortStableFunc(r.Holders, func(a, b Holder) int {
		if a.Kind != b.Kind || a.Kind == Mount || len(a.PIDs) == 0 || len(b.PIDs) == 0 {
			return cmp.Compare(slices.Index(kindNames, a.Kind), slices.Index(kindNames, b.Kind))
		}
		return cmp.Compare(a.PIDs[0], b.PIDs[0]) // several threads have found them
	})
}

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
