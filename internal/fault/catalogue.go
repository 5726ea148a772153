// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import "slices"

// The faults of the catalogue.
const (
	// DeletedVolumeSource: a volume answers, but is bound to a directory that was deleted or replaced, or is not the volume's.
	DeletedVolumeSource Code = "DeletedVolumeSource"
	// DisconnectedFUSE: the daemon that serves a volume is gone, or the server has ended its session.
	DisconnectedFUSE Code = "DisconnectedFUSE"
	// HungMount: a mount does not answer.
	HungMount Code = "HungMount"
	// OrphanedPodVolumes: the kubelet cannot remove the directory of a pod that is gone, because volumes of it are left.
	OrphanedPodVolumes Code = "OrphanedPodVolumes"
	// StaleFileHandle: the server of a volume does not know the directory any more that the volume is.
	StaleFileHandle Code = "StaleFileHandle"
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
		Code:     DeletedVolumeSource,
		Title:    "A volume is bound to a directory that was deleted or replaced, or that is not the volume's",
		Severity: Critical,
		Proof: "the mount at the place where the kubelet keeps this volume of this pod answers, and its root is marked deleted, has no " +
			"link left, cannot be bound in a trial, or is of the file system below the staging path instead of the one that is staged",
		Repair: "put what the driver has staged for the same volume handle, at the same directory, in its place, on the host and in the " +
			"containers that run; where there is no such thing, evict the pod",
	},
	{
		Code:     DisconnectedFUSE,
		Title:    "The daemon of a volume is gone, or its session was ended by the server",
		Severity: Critical,
		Proof: "the mount itself, asked in a process that can be lost, answers that its connection is gone (ENOTCONN, ECONNABORTED), or " +
			"that the session was ended (ESHUTDOWN)",
		Repair: "put what the driver has mounted afresh for the same volume handle in its place, on the host and in the containers that run; " +
			"where there is no such thing, evict the pod",
	},
	{
		Code:     HeldDevice,
		Title:    "A device cannot be detached because something that the host does not show holds it",
		Severity: Critical,
		Proof: "the kernel refuses to open the device exclusively, its file system is not mounted in the kubelet's mount namespace, and " +
			"a mount of that very superblock is seen in another one",
		Repair: "unmount it in that mount namespace, every copy, without ending a process; then detach the device by its own means",
	},
	{
		Code:     HungMount,
		Title:    "A mount does not answer",
		Severity: Critical,
		Proof: "a process that asked the mount for its root had no answer by the deadline, and requests of its connection wait where " +
			"the kernel tells",
		Repair: "none by itself: the daemon or the server has to answer again; the FUSE connection is aborted on explicit request only",
	},
	{
		Code:     MissingBindSource,
		Title:    "The source of a mount does not exist",
		Severity: Critical,
		Proof:    "a lookup of the source, in the kubelet's mount namespace and without leaving the volume, says that there is nothing",
		Repair:   "none by mount: the missing file or directory has to be created, or the volume changed",
	},
	{
		Code:     OrphanedPodVolumes,
		Title:    "Volumes of a pod that is gone are left in the kubelet's directory",
		Severity: Warning,
		Proof: "the kubelet's directory of the pod has volumes or subPaths in it, and neither the API server nor the container runtime " +
			"knows a pod of that UID",
		Repair: "remove the empty directories, leaf first, once nothing of them is mounted in any mount namespace; anything that may be " +
			"data is left",
	},
	{
		Code:     SourceTypeMismatch,
		Title:    "A file is mounted onto a directory, or a directory onto a file",
		Severity: Critical,
		Proof: "the runtime reports the mismatch and the source is seen to be there, alive, and of one of the two types; or a hostPath " +
			"is seen to be of another type than the pod's spec demands",
		Repair: "none by mount: subPath, mountPath or the type of the hostPath has to be changed in the pod's template",
	},
	{
		Code:     StaleFileHandle,
		Title:    "The server does not know the directory of a volume any more",
		Severity: Critical,
		Proof:    "the mount itself, asked in a process that can be lost, answers ESTALE",
		Repair: "put what the driver has staged for the same volume handle in its place if that answers; where it does not, the export " +
			"has to be mended on the server, or the pod evicted",
	},
	{
		Code:     StaleSubPath,
		Title:    "A subPath is still bound to a file that was deleted or replaced",
		Severity: Critical,
		Proof: "at the place where the kubelet binds this subPath of this pod, a mount whose root the kernel has marked deleted and " +
			"which has no link left, or which is not what the subPath names now",
		Repair: "unmount that one mount and bind what the subPath names now in its place, where there is such a thing; the container's next " +
			"start is brought forward",
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
