// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import "strings"

// Place is the kind of thing that is at fault. The same fault needs another remedy at another place.
type Place string

// Places.
const (
	// PlaceUnknown: the kind is not known.
	PlaceUnknown Place = ""
	// PlaceVolume: a mount that a driver or a volume plugin has made for this pod. A new pod gets a mount of its own.
	PlaceVolume Place = "Volume"
	// PlaceHostPath: a mount of the node on which a hostPath of the pod lies. A new pod gets the same mount.
	PlaceHostPath Place = "HostPath"
	// PlaceInsideVolume: a mount that a workload has made inside a volume of the pod, such as in an emptyDir.
	PlaceInsideVolume Place = "InsideVolume"
	// PlaceSubPath: the kubelet's bind of a subPath.
	PlaceSubPath Place = "SubPath"
	// PlaceContainer: a copy of a mount in the mount namespace of a container.
	PlaceContainer Place = "Container"
	// PlaceSource: a file or directory that a container is to get, and that is not mounted yet.
	PlaceSource Place = "Source"
	// PlaceSocket: a socket that a container is to get. Only its daemon makes it.
	PlaceSocket Place = "Socket"
	// PlaceDevice: a block device.
	PlaceDevice Place = "Device"
	// PlacePodDirectory: the directory of a pod that is gone.
	PlacePodDirectory Place = "PodDirectory"
	// PlaceMounts: a path of the node at which mounts lie.
	PlaceMounts Place = "Mounts"
	// PlaceStaging: a staging path, at which a volume is mounted for the whole node.
	PlaceStaging Place = "Staging"
	// PlaceMountLimit: the number of mounts that the node may have.
	PlaceMountLimit Place = "MountLimit"
)

// Places lists every place that is known. The caller owns the slice.
func Places() []Place {
	return []Place{
		PlaceVolume, PlaceHostPath, PlaceInsideVolume, PlaceSubPath, PlaceContainer, PlaceSource, PlaceSocket,
		PlaceDevice, PlacePodDirectory, PlaceMounts, PlaceStaging, PlaceMountLimit,
	}
}

// PodState says whether a pod stays. Empty: the pod is not known.
type PodState string

// States of a pod.
const (
	// PodWanted: it runs or is to run.
	PodWanted PodState = "Wanted"
	// PodDeleting: it is being deleted.
	PodDeleting PodState = "Deleting"
	// PodEnded: it has succeeded or failed, and does not run again.
	PodEnded PodState = "Ended"
)

// RefusalReason says in a type why kubediag repairs nothing of a fault now.
type RefusalReason string

// Reasons of refusals.
const (
	// AwaitsDriver: the driver of the volume has to mount it again first.
	AwaitsDriver RefusalReason = "AwaitsDriver"
	// NoSource: nothing is known that belongs in the place of the mount.
	NoSource RefusalReason = "NoSource"
	// NoAnswer: the file system does not answer, and may do so again.
	NoAnswer RefusalReason = "NoAnswer"
	// NotProven: it is not proven that the mount belongs to the pod's spec, or that it can be replaced.
	NotProven RefusalReason = "NotProven"
	// HasData: data would be hidden or lost.
	HasData RefusalReason = "HasData"
	// InUse: a process uses the mount or device that would be changed.
	InUse RefusalReason = "InUse"
	// NodeMount: it is a mount of the node or of a workload, and no driver makes it again for a new pod.
	NodeMount RefusalReason = "NodeMount"
	// PodGoes: the pod is going, and the kubelet takes its volumes away.
	PodGoes RefusalReason = "PodGoes"
)

// maxRefusal is how many bytes the text of a refusal has at most.
const maxRefusal = 400

// Refusal says why kubediag repairs nothing of a fault now.
type Refusal struct {
	Reason RefusalReason `json:"reason"`
	// Text is for people, without the name of the mount: a sentence without its full stop.
	Text string `json:"text"`
}

// Refuse makes a refusal with at most maxRefusal bytes of text.
func Refuse(reason RefusalReason, text string) Refusal {
	const cut = "..."
	if text = strings.ToValidUTF8(text, "\uFFFD"); len(text) > maxRefusal {
		text = strings.ToValidUTF8(text[:maxRefusal-len(cut)], "") + cut
	}
	return Refusal{reason, text}
}
