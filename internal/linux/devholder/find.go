// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

// Finder looks for holders. It may be used by several goroutines.
type Finder struct {
	// Sys is where block devices are looked for.
	Sys blockdev.Sys
	// Scanner passes over the mounts; one that is kept makes later searches
	// faster. nil is a new one each time.
	Scanner *mountns.Scanner
	// Runner runs Job; nil: one for each.
	Runner *subprocess.Runner
	// Thorough has processes, overlays and loop devices looked at also where
	// mounts explain by themselves why the device is busy.
	Thorough bool
}

// Find says who holds a device. Whatever mounts it, its partitions, the disk
// that it is a partition of, or the file system whose journal it carries holds
// it, too. blockdev.ErrNotFound, blockdev.ErrChanged: it is gone, or another by
// now.
func (f *Finder) Find(ctx context.Context, d blockdev.Device) (*Report, error) {
	s, err := f.beginAlone(d)
	if err == nil {
		err = pass(s.scanner, []*search{s})
	}
	if err == nil {
		err = s.finish(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("find holders of %q: %w", d.Name, err)
	}
	return s.report, nil
}

// search is the search for the holders of one device.
type search struct {
	sys     blockdev.Sys
	scanner *mountns.Scanner
	runner  *subprocess.Runner
	report  *Report
	all     []blockdev.Device // of the machine

	thorough bool
	// devices are the block devices whose use holds this one, super the numbers
	// that files and mounts on it show.
	devices, super map[blockdev.Number]bool
	btrfs          map[string]bool // names of the members of a btrfs on it
	// explained says, by Number, which superblocks have a holder.
	explained map[blockdev.Number]bool
	proven    bool                       // anything was found that makes the device busy
	unique    map[uint64]blockdev.Number // mounts on it, by unique ID
	reused    map[int]blockdev.Number    // the same by the number in mountinfo
	entries   map[entry]int              // index in report.Holders
	// unanswered are loop devices whose backing file is unknown.
	unanswered []string
}

func (f *Finder) beginAlone(d blockdev.Device) (*search, error) {
	all, err := f.Sys.All()
	if err != nil {
		return nil, err
	}
	return f.begin(d, all)
}

// begin asks the kernel about the device itself, one of all: the truth test, the
// live superblocks, and the kernel's own uses.
func (f *Finder) begin(d blockdev.Device, all []blockdev.Device) (*search, error) {
	s := &search{
		sys: f.Sys, scanner: f.Scanner, runner: f.Runner, thorough: f.Thorough, all: all, report: &Report{Device: d},
		devices: map[blockdev.Number]bool{}, super: map[blockdev.Number]bool{}, btrfs: map[string]bool{},
		explained: map[blockdev.Number]bool{}, unique: map[uint64]blockdev.Number{}, reused: map[int]blockdev.Number{},
		entries: map[entry]int{},
	}
	if s.scanner == nil {
		s.scanner = mountns.NewScanner()
	}
	if err := s.test(); err != nil {
		return nil, err
	}
	if err := s.collectNumbers(); err != nil {
		return nil, err
	}
	return s, s.users()
}

// family adds the numbers of the device, its partitions, and the disk that it is
// a partition of. A descriptor of that disk does not hold the partition.
func (s *search) family() {
	d := s.report.Device
	s.devices[d.Number], s.super[d.Number] = true, true
	for _, other := range s.all {
		switch {
		case other.Parent == d.Name:
			s.devices[other.Number], s.super[other.Number] = true, true
		case d.Parent != "" && d.Parent == other.Name:
			s.super[other.Number] = true
		}
	}
}

// collectNumbers finds the numbers that mounts, files and descriptors which hold the
// device may show.
func (s *search) collectNumbers() (err error) {
	s.family()
	if s.report.FileSystems, err = s.sys.FileSystems(s.report.Device); err != nil {
		return err
	}
	for _, fs := range s.report.FileSystems {
		if fs.Number != (blockdev.Number{}) {
			s.super[fs.Number] = true
		}
		for _, name := range fs.Members {
			s.btrfs[name] = true
		}
		if fs.Journal {
			s.add(Holder{Kind: Journal, Path: fs.Evidence, Detail: "carries the journal of the " + fs.Type + " on device " + fs.Number.String()})
			s.place(fs.Number)
		}
	}
	return nil
}

// users notes how the kernel itself uses the device.
func (s *search) users() error {
	users, err := s.sys.Users(s.report.Device)
	for _, u := range users {
		h := Holder{Kind: Swap, Path: u.Path, Detail: u.Evidence}
		switch u.Kind {
		case blockdev.Stacked:
			h = Holder{Kind: StackedDevice, Path: u.Device.Node(), Detail: u.Evidence}
		case blockdev.SwapFile:
			s.place(u.Device.Number)
		}
		s.add(h)
		s.proven = true
	}
	return err
}

// marks are the signs that something is on the device.
func (s *search) marks() marks {
	return marks{
		Devices: slices.Collect(maps.Keys(s.devices)), Super: slices.Collect(maps.Keys(s.super)), Unique: s.unique, Reused: s.reused,
	}
}

// processes looks into every process, and threads into the threads that are no processes.
func (s *search) processes(ctx context.Context) error {
	return s.runJob(ctx, order{Of: ofProcesses, Marks: s.marks()}, nil)
}

func (s *search) threads(ctx context.Context) error {
	return s.runJob(ctx, order{Of: ofThreads, Marks: s.marks()}, nil)
}

// finish looks at everything that is no mount, if that is called for, and brings
// the report to an end.
func (s *search) finish(ctx context.Context) error {
	if s.thorough || s.unexplained() {
		s.report.Looked.Processes = true
		for _, look := range []func(context.Context) error{s.loops, s.processes, s.overlays} {
			if err := look(ctx); err != nil {
				return err
			}
		}
	}
	if s.report.Looked.Processes && s.busyUnexplained() {
		s.report.Looked.Threads = true
		if err := s.threads(ctx); err != nil {
			return err
		}
	}
	if s.busyUnexplained() {
		// The holder may have gone meanwhile.
		if err := s.retest(); err != nil {
			return err
		}
	}
	s.conclude()
	return ctx.Err()
}

// conclude completes the report by what follows from it.
func (s *search) conclude() {
	r := s.report
	if s.busyUnexplained() {
		r.Hidden = s.hidden()
	}
	if r.Untested != nil {
		r.Busy = s.proven || len(r.FileSystems) > 0
	}
	for i := range r.Holders {
		slices.Sort(r.Holders[i].PIDs)
	}
	slices.SortStableFunc(r.Holders, func(a, b Holder) int {
		return cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind))
	})
}

// unexplained reports whether nothing was found, or a superblock is alive that
// nothing was found for.
func (s *search) unexplained() bool { return !s.proven || s.busyUnexplained() }

// busyUnexplained is unexplained for a device that is busy, or may be.
func (s *search) busyUnexplained() bool {
	for _, fs := range s.report.FileSystems {
		if !s.explained[fs.Number] {
			return true
		}
	}
	return (s.report.Busy || s.report.Untested != nil) && !s.proven
}
