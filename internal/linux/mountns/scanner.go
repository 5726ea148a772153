// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Mount is a mount in some mount namespace of the machine.
type Mount struct {
	// Mount is as mountinfo shows it. Asked through the kernel's calls it has
	// neither Options nor SuperOptions, nor the rarer fields of propagation.
	// Point is then relative to the root of the namespace, not to that of one
	// of its processes.
	mountinfo.Mount
	// Unique is the kernel's number that is never used again; 0 if the kernel has none, or if it was read from
	// mountinfo.
	Unique uint64
	// Namespace is where it is mounted.
	Namespace Namespace
}

// Survey is the extent of a pass over the machine: it distinguishes a search that found nothing from a search that did
// not take place.
type Survey struct {
	// Backend is "kernel" or "procfs".
	Backend string `json:"backend"`
	// Namespaces and Mounts are how many were read.
	Namespaces int `json:"namespaces"`
	Mounts     int `json:"mounts"`
	// Denied counts processes whose namespace may not be read. Through procfs their mounts are read all the same, if
	// they show any.
	Denied int `json:"denied,omitempty"`
	// DeniedPIDs are the processes that any of several passes could not inspect, each once.
	DeniedPIDs []int `json:"-"`
	// Partial counts namespaces that could not be read, or of which only the mounts inside some process' chroot were
	// seen.
	Partial int `json:"partial,omitempty"`
	// Skipped names, in phrases, the things that were left out because a bound was met.
	Skipped []string `json:"skipped,omitempty"`
}

// CheckComplete is an error if something was skipped: then a mount that was not found may exist all the same.
func (s *Survey) CheckComplete() error {
	if len(s.Skipped) == 0 {
		return nil
	}
	return fmt.Errorf("not everything was looked at: %s", strings.Join(s.Skipped, "; "))
}

// AddDenied notes the processes that another pass could not inspect.
func (s *Survey) AddDenied(pids []int) {
	s.Denied = max(s.Denied, len(pids))
	s.DeniedPIDs = append(s.DeniedPIDs, pids...)
	slices.Sort(s.DeniedPIDs)
	s.DeniedPIDs = slices.Compact(s.DeniedPIDs)
}

// addSkip notes a gap.
func (s *Survey) addSkip(format string, args ...any) {
	s.Skipped = append(s.Skipped, fmt.Sprintf(format, args...))
}

// scanner passes over every mount namespace of the machine, with processes and
// without. It keeps nothing from one pass to the next, but the file systems of mounts where those have numbers that are used once.
//
// Two ways lead through the machine. The kernel's own calls (6.12, in the initial PID namespace, with CAP_SYS_ADMIN)
// see everything. Without them it reads /proc. This does not show mounts outside the root of every process of a
// namespace, and much of it needs the right to trace processes. Neither is a snapshot: a pass may miss mounts that come
// and go meanwhile. Any user may make mounts, so all that a pass reads is bounded.
type scanner struct {
	backend backend
	limits  scanLimits
}

// backend is one way through the machine.
type backend interface {
	namespaces() ([]Namespace, Survey, error)
	scan(wanted func(*MountBrief) bool, found func(*Mount)) (Survey, error)
}

// newScanner chooses the way by the features of the kernel and the rights of this process.
func newScanner(l scanLimits) scanner {
	if sys.HasNamespaceWalk.Probe() == nil && sys.HasNamespaceID.Probe() == nil {
		return scanner{kernelScan{limits: l}, l}
	}
	return scanner{procScan{limits: l}, l}
}

// Namespaces is every mount namespace of the machine. PID is 0 if no process
// is known; Holders finds out.
func Namespaces() ([]Namespace, Survey, error) {
	found, survey, err := newScanner(standardLimits).backend.namespaces()
	slices.SortFunc(found, func(a, b Namespace) int { return cmp.Compare(a.Inode, b.Inode) })
	return found, survey, err
}

// Ended says of namespaces that were seen before whether they are no more. It says so of none if not every namespace of
// the machine could be listed. Before Linux 6.12 a new namespace with the number of an ended one counts as the ended one.
func Ended() (func(seen Namespace) bool, error) {
	now, survey, err := Namespaces()
	if err != nil {
		return nil, err
	}
	living := map[uint64][]Namespace{}
	for _, n := range now {
		living[n.Inode] = append(living[n.Inode], n)
	}
	return func(seen Namespace) bool {
		return len(survey.Skipped) == 0 && !slices.ContainsFunc(living[seen.Inode], seen.Same)
	}, nil
}

// MountBrief holds the facts about a mount that are known before any of its texts is read. It is valid for one call.
type MountBrief struct {
	Namespace    Namespace
	Major, Minor uint32
	// Parent is the number of the mount that it is mounted on, as mountinfo shows it.
	Parent int
	// MayHang is MayHang of the file system's type, and Overlay whether that is overlay.
	MayHang, Overlay bool

	unique    uint64           // as in Mount; 0 if the mount is gone
	known     *mountinfo.Mount // all of it; nil: it is to be read
	described bool             // all but Parent and Overlay is known
}

func (s scanner) matchingMounts(wanted func(*MountBrief) bool) ([]Mount, Survey, error) {
	var found []Mount
	room := newMemoryBudget(s.limits)
	survey, err := s.backend.scan(func(b *MountBrief) bool {
		return wanted(b) && room.mayFit(b.Namespace)
	}, func(m *Mount) {
		if room.reserve(m.Namespace, m.memorySize()) {
			found = append(found, *m)
		}
	})
	room.addSkipped(&survey)
	slices.SortFunc(found, func(a, b Mount) int {
		return cmp.Or(cmp.Compare(a.Namespace.Inode, b.Namespace.Inode),
			cmp.Compare(a.Point, b.Point), cmp.Compare(a.ID, b.ID))
	})
	return found, survey, err
}

// EachMount is EachMount of a Pass for one search alone.
func EachMount(wanted func(*MountBrief) bool, found func(*Mount)) (Survey, error) {
	return (*Pass)(nil).EachMount(wanted, found)
}

// FileSystem is a file system that is mounted somewhere on the machine.
type FileSystem struct {
	// Mount is one of its mounts.
	Mount Mount
	// Namespaces is where it is mounted, each once.
	Namespaces []Namespace
}

// FileSystems is FileSystems of a Pass for one search alone.
func FileSystems() ([]FileSystem, Survey, error) { return (*Pass)(nil).FileSystems() }

// fileSystems lists the file systems of the wanted mounts.
func (s scanner) fileSystems(wanted func(*MountBrief) bool) ([]FileSystem, Survey, error) {
	at := map[uint64]int{} // device -> index in found
	var found []FileSystem
	room := newMemoryBudget(s.limits)
	survey, err := s.backend.scan(func(b *MountBrief) bool {
		if !wanted(b) {
			return false
		}
		i, known := at[deviceNumber(b.Major, b.Minor)]
		if known && found[i].Namespaces[len(found[i].Namespaces)-1] != b.Namespace && room.reserve(b.Namespace, namespaceSize) {
			found[i].Namespaces = append(found[i].Namespaces, b.Namespace) // one comes after the other
		}
		return !known && room.mayFit(b.Namespace)
	}, func(m *Mount) {
		if room.reserve(m.Namespace, m.memorySize()+namespaceSize) {
			at[deviceNumber(m.Major, m.Minor)] = len(found)
			found = append(found, FileSystem{Mount: *m, Namespaces: []Namespace{m.Namespace}})
		}
	})
	room.addSkipped(&survey)
	for i := range found {
		m := &found[i].Mount
		if m.FSType != "btrfs" || m.Source != "" {
			continue
		}
		// The source of a btrfs alone names its device. Statmount gives it since Linux 6.13, and the mount table before that.
		if table, err := m.Namespace.Table(); err == nil {
			listed, _ := table.ByID(m.ID)
			m.Source = listed.Source
		}
	}
	slices.SortFunc(found, func(a, b FileSystem) int {
		return cmp.Or(cmp.Compare(a.Mount.Major, b.Mount.Major), cmp.Compare(a.Mount.Minor, b.Mount.Minor))
	})
	return found, survey, err
}
