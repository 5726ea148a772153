// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import "slices"

// The faults of the catalogue.
const (
	// HeldDevice: a block device cannot be detached because something that the host does not show has it still.
	HeldDevice Code = "HeldDevice"
	// StaleSubPath: the source of a subPath bind was deleted or replaced, and the kubelet keeps the old bind.
	StaleSubPath Code = "StaleSubPath"
	// MissingBindSource: what is to be mounted into a container is not there at all.
	MissingBindSource Code = "MissingBindSource"
	// SourceTypeMismatch: a file is to be mounted onto a directory, or the reverse.
	SourceTypeMismatch Code = "SourceTypeMismatch"
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

// Entry is what the catalogue says about one fault.
type Entry struct {
	Code     Code
	Title    string
	Severity Severity
	// Proof is what must be seen before the fault is called by its name.
	Proof string
	// Repair is the smallest safe repair, or what a person has to do where kubediag repairs nothing.
	Repair string
	// Runbook is the page about the fault, relative to the root of the source tree.
	Runbook string
}

// catalogue is in the order of the codes.
var catalogue = []Entry{
	{
		Code:     HeldDevice,
		Title:    "A device cannot be detached because something that the host does not show holds it",
		Severity: Critical,
		Proof: "the kernel refuses to open the device exclusively, its file system is not mounted in the kubelet's mount namespace, and " +
			"a mount of that very superblock is seen in another one",
		Repair: "unmount it in that mount namespace, every copy, without ending a process; then detach the device by its own means",
	},
	{
		Code:     MissingBindSource,
		Title:    "The source of a mount does not exist",
		Severity: Critical,
		Proof:    "a lookup of the source, in the kubelet's mount namespace and without leaving the volume, says that there is nothing",
		Repair:   "none by mount: the missing file or directory has to be created, or the volume changed",
	},
	{
		Code:     SourceTypeMismatch,
		Title:    "A file is mounted onto a directory, or a directory onto a file",
		Severity: Critical,
		Proof:    "the runtime reports the mismatch and the source is seen to be there, alive, and of one of the two types",
		Repair:   "none by mount: subPath or mountPath has to be changed in the pod's template",
	},
	{
		Code:     StaleSubPath,
		Title:    "A subPath is still bound to a file that was deleted or replaced",
		Severity: Critical,
		Proof: "at the place where the kubelet binds this subPath of this pod, a mount whose root the kernel has marked deleted and " +
			"which has no link left, or which is not what the subPath names now",
		Repair: "unmount that one mount; the kubelet binds afresh at the container's next start, which is brought forward",
	},
}

// Catalogue lists every entry, ordered by code. The caller owns the slice.
func Catalogue() []Entry {
	entries := slices.Clone(catalogue)
	for i := range entries {
		entries[i].Runbook = runbook(entries[i].Code)
	}
	return entries
}

// Lookup finds the entry of a code.
func Lookup(code Code) (Entry, bool) {
	for _, e := range Catalogue() {
		if e.Code == code {
			return e, true
		}
	}
	return Entry{}, false
}

func runbook(code Code) string { return "docs/runbook/" + string(code) + ".md" }
