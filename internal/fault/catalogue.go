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
	// Repair is the smallest safe repair, or what a person has to do where kubediag repairs nothing.
	Repair string
}

// catalogue is in the order of the codes.
var catalogue = []Entry{
	{
		Code:     DeletedVolumeSource,
		Title:    "A volume is bound to a directory that was deleted or replaced, or that is not the volume's",
		Severity: Critical,
		Repair: "replace the mount with the same directory of the driver's staged mount, on the host and in running containers; if there " +
			"is none, evict the pod",
	},
	{
		Code:     DisconnectedFUSE,
		Title:    "The daemon of a volume is gone, or its session was ended by the server",
		Severity: Critical,
		Repair: "replace the dead mount with the one that the driver mounted again, on the host and in running containers; if there is " +
			"none, evict the pod",
	},
	{
		Code:     HeldDevice,
		Title:    "A device cannot be detached because something that the host does not show holds it",
		Severity: Critical,
		Repair:   "unmount every copy in the mount namespace that has it, without ending a process; then detach the device",
	},
	{
		Code:     HungMount,
		Title:    "A mount does not answer",
		Severity: Critical,
		Repair:   "none by itself: the daemon or the server must answer again; the FUSE connection is aborted on explicit request only",
	},
	{
		Code:     MissingBindSource,
		Title:    "The source of a mount does not exist",
		Severity: Critical,
		Repair:   "none by mount: the missing file or directory has to be created, or the volume changed",
	},
	{
		Code:     OrphanedPodVolumes,
		Title:    "Volumes of a pod that is gone are left in the kubelet's directory",
		Severity: Warning,
		Repair: "remove the empty directories, leaf first, once no mount namespace has a mount of them; anything that may be data " +
			"stays",
	},
	{
		Code:     SourceTypeMismatch,
		Title:    "A file is mounted onto a directory, or a directory onto a file",
		Severity: Critical,
		Repair:   "none by mount: subPath, mountPath or the type of the hostPath has to be changed in the pod's template",
	},
	{
		Code:     StaleFileHandle,
		Title:    "The server does not know the directory of a volume any more",
		Severity: Critical,
		Repair:   "replace it with the driver's staged mount if that answers; otherwise restore the export on the server, or evict the pod",
	},
	{
		Code:     StaleSubPath,
		Title:    "A subPath is still bound to a file that was deleted or replaced",
		Severity: Critical,
		Repair: "unmount that one mount and bind the current file or directory in its place, if it exists; the container's next start is " +
			"brought forward",
	},
}

// Catalogue lists every entry, ordered by code. The caller owns the slice.
func Catalogue() []Entry { return slices.Clone(catalogue) }

// Lookup finds the entry of a code.
func Lookup(code Code) (Entry, bool) {
	i := slices.IndexFunc(catalogue, func(e Entry) bool { return e.Code == code })
	if i < 0 {
		return Entry{}, false
	}
	return catalogue[i], true
}
