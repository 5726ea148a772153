// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

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
	// StaleSubPath: the source of a subPath bind was deleted or replaced, and the kubelet does not renew the bind by itself.
	StaleSubPath Code = "StaleSubPath"
	// MissingBindSource: what is to be mounted into a container is not there at all.
	MissingBindSource Code = "MissingBindSource"
	// SourceTypeMismatch: a file is to be mounted onto a directory, or the reverse.
	SourceTypeMismatch Code = "SourceTypeMismatch"
	// VolumeIOError: the file system of a volume answers with an error that no change of mounts repairs.
	VolumeIOError Code = "VolumeIOError"
)

// waitsForDriver is the NoPlan of faults that the driver of a volume can end.
const waitsForDriver = "nothing yet: replace the mount once the driver has mounted the volume again"

// catalogue is in the order of the codes.
var catalogue = []Entry{
	{
		Code:     DeletedVolumeSource,
		Title:    "A volume is bound to a directory that was deleted or replaced, or that is not the volume's",
		Severity: Critical,
		Repair: "replace the mount with the same directory of the driver's staged mount, on the host and in running containers; if there " +
			"is none, evict the pod",

		Family:       FamilyVolume,
		Searches:     []Search{SearchVolumes},
		AwaitsDriver: true,
		Operation:    "volume-rebind-recover",
		Actions:      []ActionKind{Replace, RemoveContainerRecord, Evict},
		Fact:         "its directory was deleted or replaced",
		NoPlan:       waitsForDriver,
		Next:         "have the driver mount the volume again and create another Diagnosis",
	},
	{
		Code:     DisconnectedFUSE,
		Title:    "The daemon of a volume is gone, or its session was ended by the server",
		Severity: Critical,
		Repair: "replace the dead mount with the one that the driver mounted again, on the host and in running containers; if there is " +
			"none, evict the pod; unmount a dead mount of the node that hides a living one, or whose pod is going",

		Family:       FamilyVolume,
		Searches:     []Search{SearchVolumes},
		AwaitsDriver: true,
		Operation:    "volume-rebind-recover",
		Actions:      []ActionKind{Replace, Unmount, RemoveContainerRecord, Evict},
		Fact:         "the connection to its server is gone",
		NoPlan:       waitsForDriver,
		Next:         "have the driver mount the volume again and create another Diagnosis",
	},
	{
		Code:     HeldDevice,
		Title:    "A device cannot be detached because something that the host does not show holds it",
		Severity: Critical,
		Repair:   "unmount every copy in the mount namespace that has it, without ending a process; then detach the device",

		Family:    FamilyDevice,
		Searches:  []Search{SearchDevices},
		Operation: "held-device-recover",
		Actions:   []ActionKind{Unmount, Detach},
		Fact:      "the device is still mounted elsewhere",
		NoPlan:    "nothing by itself: what holds the device is in use, or no copy of a mount of the kubelet",
		Next:      "end what uses the device, or unmount it where it is held; kubediag holders, on the node, shows where",
	},
	{
		Code:     HungMount,
		Title:    "A mount does not answer",
		Severity: Critical,
		Repair:   "none by itself: the daemon or the server must answer again; the FUSE connection is aborted on explicit request only",

		Family:    FamilyVolume,
		Searches:  []Search{SearchVolumes},
		Operation: "volume-rebind-recover",
		Actions:   []ActionKind{Abort, Replace, RemoveContainerRecord, Evict},
		Fact:      "it does not answer",
		NoPlan:    "nothing by itself: the daemon or the server must answer again",
		Next: "have its daemon or server answer again; if it never will, create a Diagnosis with the parameter " +
			"param.recover.kubernetes.volume_rebind.abort \"true\", which loses what is not stored yet",
	},
	{
		Code:     MissingBindSource,
		Title:    "The source of a mount does not exist",
		Severity: Critical,
		Repair:   "none by mount: the missing file or directory has to be created, the daemon of a socket started, or the volume changed",

		Family:   FamilyBind,
		Searches: []Search{SearchSubPaths, SearchSources, SearchVolumes},
		Actions:  []ActionKind{Evict},
		Fact:     "its source does not exist",
		NoPlan:   "nothing: the missing file or directory has to be created, or the volume changed",
		Next:     "create the missing file or directory, start the daemon if it is a socket, or change the volume in the pod's template",
	},
	{
		Code:     OrphanedPodVolumes,
		Title:    "Volumes of a pod that is gone are left in the kubelet's directory",
		Severity: Warning,
		Repair: "remove the empty directories, leaf first, once no mount namespace has a mount of them; anything that may be data " +
			"stays",

		Family:    FamilyOrphan,
		Searches:  []Search{SearchOrphans},
		Operation: "orphaned-pod-recover",
		Actions:   []ActionKind{RemoveDirectory, RemoveFile},
		Fact:      "the pod is gone and its directory is left",
		NoPlan:    "nothing: a person has to look at what is left",
		Next:      "look at what is left in the directory before you remove it by hand",
	},
	{
		Code:     SourceTypeMismatch,
		Title:    "A file is mounted onto a directory, or a directory onto a file",
		Severity: Critical,
		Repair:   "none by mount: subPath, mountPath or the type of the hostPath has to be changed in the pod's template",

		Family:   FamilyBind,
		Searches: []Search{SearchSources, SearchVolumes},
		Actions:  []ActionKind{Evict},
		Fact:     "a file is mounted onto a directory, or the reverse",
		NoPlan:   "nothing: subPath, mountPath or the type of the hostPath has to be changed in the pod's template",
		Next:     "change subPath, mountPath or the type of the hostPath in the pod's template",
	},
	{
		Code:     StaleFileHandle,
		Title:    "The server does not know the directory of a volume any more",
		Severity: Critical,
		Repair:   "replace it with the driver's staged mount if that answers; otherwise restore the export on the server, or evict the pod",

		Family:       FamilyVolume,
		Searches:     []Search{SearchVolumes},
		AwaitsDriver: true,
		Operation:    "volume-rebind-recover",
		Actions:      []ActionKind{Replace, RemoveContainerRecord, Evict},
		Fact:         "the server no longer knows its directory",
		NoPlan:       waitsForDriver,
		Next:         "restore the export on the server",
	},
	{
		Code:     StaleSubPath,
		Title:    "A subPath is still bound to a file that was deleted or replaced",
		Severity: Critical,
		Repair: "unmount that one mount and bind the current file or directory in its place, if it exists; the container's next start is " +
			"brought forward",

		Family:    FamilyBind,
		Searches:  []Search{SearchSubPaths},
		Operation: "subpath-remount-recover",
		Actions:   []ActionKind{Unmount, RemoveContainerRecord},
		Fact:      "the file it is bound to was deleted or replaced",
		NoPlan:    "nothing by itself: the kubelet has to bind the current file",
		Next:      "create another Diagnosis once that is solved",
	},
	{
		Code:     VolumeIOError,
		Title:    "The file system of a volume answers with an error",
		Severity: Critical,
		Repair:   "none by mount: the server, the network or the disk has to be repaired; then the volume is mounted again",

		Family:   FamilyVolume,
		Searches: []Search{SearchVolumes},
		Fact:     "its file system answers with an error",
		NoPlan:   "nothing: the cause is the server, the network or the disk of the volume, and no mount of this node",
		Next:     "repair the server, the network or the disk of the volume, and then have the volume mounted again",
	},
}
