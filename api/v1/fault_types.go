// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"k8s.io/apimachinery/pkg/types"
)

// FaultState says whether a fault is still there.
//
// +kubebuilder:validation:Enum=Present;Healed
type FaultState string

// States of a fault.
const (
	FaultPresent FaultState = "Present"
	FaultHealed  FaultState = "Healed"
)

// Fault is one finding: a fault of the catalogue, its place, and its proof.
type Fault struct {
	// code names the fault in the catalogue, such as StaleSubPath.
	Code string `json:"code"`
	// state says whether it is still there.
	State FaultState `json:"state"`
	// pod is the pod that suffers.
	// +optional
	Pod *FaultPod `json:"pod,omitempty"`
	// container of that pod.
	// +optional
	Container string `json:"container,omitempty"`
	// volume of that pod.
	// +optional
	Volume string `json:"volume,omitempty"`
	// mount is the mount that is at fault.
	// +optional
	Mount *Mount `json:"mount,omitempty"`
	// holder is the process that holds the device or the mount.
	// +optional
	Holder string `json:"holder,omitempty"`
	// evidence lists the facts that prove it.
	// +optional
	// +listType=atomic
	Evidence []string `json:"evidence,omitempty"`
}

// FaultPod identifies a pod for good.
type FaultPod struct {
	// namespace of the pod.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the pod.
	// +optional
	Name string `json:"name,omitempty"`
	// uid of the pod.
	// +optional
	UID types.UID `json:"uid,omitempty"`
}

// Mount identifies one mount of a node.
type Mount struct {
	// id is the mount's id that the kernel never uses again (Linux 6.8), or 0.
	// +optional
	ID uint64 `json:"id,omitempty"`
	// mountInfoID is the id in the first column of mountinfo, which the kernel uses again.
	// +optional
	MountInfoID int64 `json:"mountInfoID,omitempty"`
	// parentID is the id in the second column of mountinfo.
	// +optional
	ParentID int64 `json:"parentID,omitempty"`
	// namespace is the inode number of the mount namespace, as in mnt:[4026531841].
	// +optional
	Namespace uint64 `json:"namespace,omitempty"`
	// device is major:minor of the file system.
	// +optional
	Device string `json:"device,omitempty"`
	// root is the path inside the file system, with the kernel's mark //deleted where it is unlinked.
	// +optional
	Root string `json:"root,omitempty"`
	// point is where it is mounted, relative to the root of its mount namespace.
	// +optional
	Point string `json:"point,omitempty"`
	// fsType is the type of the file system.
	// +optional
	FSType string `json:"fsType,omitempty"`
}

// Artifact is a result kept whole on the node.
type Artifact struct {
	// key is the key of the result.
	Key string `json:"key"`
	// operation that made it.
	Operation string `json:"operation"`
	// path of the file on the node.
	Path string `json:"path"`
	// sizeBytes is the size of the file.
	SizeBytes int64 `json:"sizeBytes"`
	// sha256 is the digest of the file in hexadecimal.
	SHA256 string `json:"sha256"`
	// content is a copy of the file, compressed with gzip, if spec.artifacts is Status. Credentials are taken out of it. All copies of a
	// Diagnosis have 262144 bytes at most, compressed: a file for which there is no room has none.
	// +optional
	Content []byte `json:"content,omitempty"`
}
