// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"slices"
	"strings"
)

// Severity says how much a fault hurts.
type Severity string

// Severities.
const (
	// Critical: a container cannot start, or will not be able to at its next start.
	Critical Severity = "critical"
	// Warning: something is wrong, but containers start.
	Warning Severity = "warning"
)

// Family says who repairs a fault.
type Family string

// Families.
const (
	// FamilyBind: a bind of one container, or the source of a bind that has to be made.
	FamilyBind Family = "bind"
	// FamilyVolume: a volume, with all mounts of it.
	FamilyVolume Family = "volume"
	// FamilyDevice: a block device.
	FamilyDevice Family = "device"
	// FamilyOrphan: the directory of a pod that is gone.
	FamilyOrphan Family = "orphan"
	// FamilyMount: mounts of the node that no pod needs.
	FamilyMount Family = "mount"
)

// Families lists every family. The caller owns the slice.
func Families() []Family {
	return []Family{FamilyBind, FamilyVolume, FamilyDevice, FamilyOrphan, FamilyMount}
}

// Scope is the kind of thing that a fault hurts. Two faults of one code differ if they hurt different things of this kind.
type Scope string

// Scopes.
const (
	// ScopeContainer: one container of a pod.
	ScopeContainer Scope = "container"
	// ScopeVolume: a volume, for all containers of its pod.
	ScopeVolume Scope = "volume"
	// ScopeDevice: a device of the node. The pod of the finding is the holder's.
	ScopeDevice Scope = "device"
	// ScopeDirectory: a directory of the node, whose pod is gone.
	ScopeDirectory Scope = "directory"
	// ScopePlace: a path of the node at which mounts lie.
	ScopePlace Scope = "place"
)

// OfPod reports whether the fault hurts a pod that the finding names.
func (s Scope) OfPod() bool { return s == ScopeContainer || s == ScopeVolume }

// Breakage says how far the damage of a mount reaches. A larger one includes the smaller ones.
type Breakage int

// Breakages.
const (
	// BreaksNothing: no mount is broken by itself.
	BreaksNothing Breakage = iota + 1
	// BreaksMount: the mount is broken. One mount has one such fault.
	BreaksMount
	// BreaksFileSystem: each mount of the file system is broken.
	BreaksFileSystem
	// BreaksCallers: each process that touches the file system waits, the kubelet among them. It may answer again.
	BreaksCallers
)

// Search is a pass over one kind of things on a node. It may find faults of several families.
type Search string

// Searches.
const (
	// SearchSubPaths: the subPath binds that are mounted.
	SearchSubPaths Search = "subPaths"
	// SearchSources: the sources on the host that containers wait for before they start.
	SearchSources Search = "sources"
	// SearchVolumes: the volumes that are mounted, and hostPath volumes on file systems that can hang or fail.
	SearchVolumes Search = "volumes"
	// SearchDevices: the block devices that the kubelet has unmounted.
	SearchDevices Search = "devices"
	// SearchOrphans: the directories of pods.
	SearchOrphans Search = "orphans"
	// SearchLeaving: pods that are being deleted, and whose time is over.
	SearchLeaving Search = "leaving"
	// SearchStacks: the places at which mounts lie on each other.
	SearchStacks Search = "stacks"
)

// Searches lists every search. The caller owns the slice.
func Searches() []Search {
	return []Search{SearchSubPaths, SearchSources, SearchVolumes, SearchDevices, SearchOrphans, SearchLeaving, SearchStacks}
}

// Entry says all that depends on the code of a fault. The program makes its lists of codes from the entries.
type Entry struct {
	Code     Code
	Severity Severity
	Title    string
	// Repair is the smallest safe repair, or the task of a person where kubediag makes no repair.
	Repair string
	// Chinese has the texts of the documents in Chinese.
	Chinese Translation

	Family Family
	Scope  Scope
	Breaks Breakage
	// Searches are those that find the fault.
	Searches []Search
	// Operation is the name of the Operation that repairs the fault without loss.
	Operation string
	// Actions are the kinds of actions that there are against the fault.
	Actions []ActionKind
	// Alerts are the names of the rules for Prometheus that count the fault.
	Alerts []string

	Symptom Symptom
	// Ways are the actions that may repair a finding without loss.
	Ways map[ActionKind]Way
	// At has the remedies for a person at each place where the fault is found, and at an unknown place.
	At map[Place]Remedy
	// Loss names the loss when a broken mount of the fault is replaced.
	Loss string
	// NoPlan says why kubediag makes no repair of a finding, and Next is the next step of a person then.
	NoPlan, Next string
	Prevention   Prevention

	// Without names the fields that are empty on purpose, such as Symptom.Culprit. A field that is neither set nor named was forgotten.
	Without []string
}

// Symptom says how a fault shows.
type Symptom struct {
	// Impact says when a finding hurts. A finding that keeps its pod from going has the impact ImpactTerminating.
	Impact func(Finding) Impact
	// Fact is the first part of the summary of a finding. Culprit is the whole summary if the finding names the process behind
	// it, and empty otherwise.
	Fact, Culprit func(Finding) string
	// BySpec reports whether only the spec of its pod shows a finding at a mount, on the node whose kubelet has that root.
	BySpec func(at Mount, root string) bool
}

// Prevention is the change that makes a finding impossible; empty: there is none. None says why there is none.
type Prevention struct {
	Change func(Finding) string
	None   string
}

// bySpec is of faults that only the spec of a pod shows: a source that a container cannot get, a pod that no source knows.
func bySpec(Mount, string) bool { return true }

// byKernel is of faults that the kernel shows alone.
func byKernel(Mount, string) bool { return false }

// outside is of faults of volumes: the kubelet's own mounts need no spec, and those on which a hostPath lies do.
func outside(at Mount, root string) bool { return !strings.HasPrefix(at.Point, root+"/") }

// deletedMark ends the root of a mount whose source was deleted, as the kernel shows it.
const deletedMark = "//deleted"

// moved is of binds: the kernel shows that the source was deleted, and the spec that it was moved.
func moved(at Mount, _ string) bool { return !strings.HasSuffix(at.Root, deletedMark) }

// Translation has texts of an entry in another language.
type Translation struct{ Title, Repair string }

// Way is one action that repairs a fault.
type Way struct {
	// Why is a part of the summary: the reason that makes the action possible. Empty: the fact says enough.
	Why func(Finding) string
	// Plan describes the repair that kubediag would make.
	Plan func(Finding) string
}

// Catalogue has an entry for each fault that a program knows, in the order of the codes. It is made once and handed on.
type Catalogue []Entry

// Lookup finds the entry of a code.
func (c Catalogue) Lookup(code Code) (Entry, bool) {
	for i := range c { // an entry is large
		if c[i].Code == code {
			return c[i], true
		}
	}
	return Entry{}, false
}

// Entry returns the entry of a code. A code that the catalogue does not have is from a processor outside, or of another
// version: its entry says only that.
func (c Catalogue) Entry(code Code) Entry {
	if e, ok := c.Lookup(code); ok {
		return e
	}
	return Entry{
		Code: code, Title: string(code),
		Symptom: Symptom{Impact: always(ImpactNow), Fact: always("this version of kubediag does not know the fault"), BySpec: bySpec},
		NoPlan:  "nothing: this version of kubediag does not know the fault",
	}
}

// Codes lists the codes of the entries that match, in order.
func (c Catalogue) Codes(match func(Entry) bool) (codes []Code) {
	for _, e := range c {
		if match(e) {
			codes = append(codes, e.Code)
		}
	}
	return codes
}

// FoundBy lists the codes that one of the searches finds, in order.
func (c Catalogue) FoundBy(searches ...Search) []Code {
	return c.Codes(func(e Entry) bool {
		return slices.ContainsFunc(searches, func(s Search) bool { return slices.Contains(e.Searches, s) })
	})
}

// OfFamily lists the codes of the family, in order.
func (c Catalogue) OfFamily(f Family) []Code {
	return c.Codes(func(e Entry) bool { return e.Family == f })
}
