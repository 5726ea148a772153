// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import "slices"

// Severity says how much a fault hurts.
type Severity string

// Severities.
const (
	// Critical: a container cannot start, or will not be able to at its next start.
	Critical Severity = "critical"
	// Warning: something is wrong, but containers start.
	Warning Severity = "warning"
)

// Family says what is damaged. Faults of one family have one impact and one alert, and are repaired in the same way.
type Family string

// Families.
const (
	// FamilyBind: a bind of one container, or the source of a bind that has to be made.
	FamilyBind Family = "bind"
	// FamilyVolume: a volume, for all containers of its pod. A new pod gets a new mount.
	FamilyVolume Family = "volume"
	// FamilyDevice: a block device.
	FamilyDevice Family = "device"
	// FamilyOrphan: the directory of a pod that is gone.
	FamilyOrphan Family = "orphan"
)

// Families lists every family. The caller owns the slice.
func Families() []Family { return []Family{FamilyBind, FamilyVolume, FamilyDevice, FamilyOrphan} }

// Search is a pass over one kind of things on a node. It may find faults of several families.
type Search string

// Searches.
const (
	// SearchSubPaths: the subPath binds that are mounted.
	SearchSubPaths Search = "subPaths"
	// SearchSources: what containers that are not started mount from the host.
	SearchSources Search = "sources"
	// SearchVolumes: the volumes that are mounted, and hostPath volumes on file systems that can hang or fail.
	SearchVolumes Search = "volumes"
	// SearchDevices: the block devices that the kubelet has unmounted.
	SearchDevices Search = "devices"
	// SearchOrphans: the directories of pods.
	SearchOrphans Search = "orphans"
)

// Searches lists every search. The caller owns the slice.
func Searches() []Search {
	return []Search{SearchSubPaths, SearchSources, SearchVolumes, SearchDevices, SearchOrphans}
}

// Watched reports whether the sentinel makes the search all the time, without a Diagnosis.
func (s Search) Watched() bool {
	switch s {
	case SearchSubPaths, SearchVolumes, SearchOrphans:
		return true
	case SearchSources, SearchDevices:
	}
	return false
}

// Entry is what the catalogue says about one fault. The program makes its lists of codes from the entries.
type Entry struct {
	Code     Code
	Title    string
	Severity Severity
	// Repair is the smallest safe repair, or what a person has to do where kubediag repairs nothing.
	Repair string

	Family Family
	// Searches are those that find the fault.
	Searches []Search
	// AwaitsDriver is whether the fault can be repaired once the volume's driver has mounted the volume again.
	AwaitsDriver bool
	// Operation is the name of the Operation that repairs the fault without loss. Empty: there is none.
	Operation string
	// Actions are the kinds of actions that there are against the fault. Empty: there are none.
	Actions []ActionKind
	// Fact is the fixed part of the sentence about a finding.
	Fact string
	// NoPlan says why kubediag does nothing about a finding that it cannot repair, Next what a person does then.
	NoPlan, Next string
}

// Catalogue lists every entry, ordered by code. The caller owns the slice.
func Catalogue() []Entry { return slices.Clone(catalogue) }

// CodesOf lists the codes of the entries that match, in order.
func CodesOf(match func(Entry) bool) (codes []Code) {
	for _, e := range catalogue {
		if match(e) {
			codes = append(codes, e.Code)
		}
	}
	return codes
}

// Codes lists the codes of the family, in order.
func (f Family) Codes() []Code {
	return CodesOf(func(e Entry) bool { return e.Family == f })
}

// Codes lists the codes that the search finds, in order.
func (s Search) Codes() []Code {
	return CodesOf(func(e Entry) bool { return slices.Contains(e.Searches, s) })
}

// Entry returns the entry of the code. It is empty if the catalogue does not have the code.
func (c Code) Entry() Entry {
	e, _ := Lookup(c)
	return e
}

// BreaksMount reports whether the fault says of a mount itself that it is broken. One mount has one such fault.
func (c Code) BreaksMount() bool { return c == StaleSubPath || c.Entry().Family == FamilyVolume }

// Lookup finds the entry of a code.
func Lookup(code Code) (Entry, bool) {
	i := slices.IndexFunc(catalogue, func(e Entry) bool { return e.Code == code })
	if i < 0 {
		return Entry{}, false
	}
	return catalogue[i], true
}
