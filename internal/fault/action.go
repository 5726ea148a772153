// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

// ActionKind is the kind of change that an action makes. Kinds are stable: they appear in statuses and metrics.
type ActionKind string

// Kinds of actions.
const (
	// Unmount takes a mount away.
	Unmount ActionKind = "Unmount"
	// Replace puts the source of a volume in the place of a mount.
	Replace ActionKind = "Replace"
	// Abort ends the connection of a FUSE file system that hangs. Every mount of it is dead afterwards.
	Abort ActionKind = "Abort"
	// Detach detaches a device.
	Detach ActionKind = "Detach"
	// Evict asks for the eviction of a pod.
	Evict ActionKind = "Evict"
	// RemoveDirectory and RemoveFile remove an entry from the directory of a pod that is gone.
	RemoveDirectory ActionKind = "RemoveDirectory"
	RemoveFile      ActionKind = "RemoveFile"
	// RemoveContainerRecord has the container runtime forget a container that never started.
	RemoveContainerRecord ActionKind = "RemoveContainerRecord"
)

// Action is one change of a plan. Target, Safety and Loss are for people, and no code reads them.
type Action struct {
	Kind ActionKind `json:"kind"`
	// For are the keys of the faults that the action serves. Empty: it serves none, such as the unmapping of an idle device.
	For []Key `json:"for,omitempty"`
	// Target is the mount, device, file, container or pod that is changed.
	Target string `json:"target"`
	// Mount is the mount that is changed, if it is a mount. Only this very mount may be changed.
	Mount *Mount `json:"mount,omitempty"`
	// Device is the device that is detached.
	Device *Device `json:"device,omitempty"`
	// File is the file or directory that is removed.
	File *File `json:"file,omitempty"`
	// Record is the container runtime's name of the container whose record is removed, and Container its name in the pod.
	Record    string `json:"record,omitempty"`
	Container string `json:"container,omitempty"`
	// Pod is the pod that is evicted, and of Replace and Abort the one whose volume it is.
	Pod *Pod `json:"pod,omitempty"`
	// Safety says why it is safe, Loss names the possible losses. Lossless is set if neither data nor work can be lost.
	Safety   string `json:"safety,omitempty"`
	Loss     string `json:"loss,omitempty"`
	Lossless bool   `json:"lossless,omitempty"`
}

// Key is that of the first fault that the action serves. Budgets and failed repairs are counted by it. It is zero if there is none.
func (a Action) Key() Key {
	if len(a.For) == 0 {
		return Key{}
	}
	return a.For[0]
}

// Overlaps reports whether two actions are about the same thing: the same mount or a mount at the same place, a device of
// the same name, the same path, container record, or pod. Their kinds may differ. It reads no text for people. known is
// false if one of them has nothing to compare.
func (a Action) Overlaps(b Action) (same, known bool) {
	if !a.identified() || !b.identified() {
		return false, false
	}
	switch {
	case a.Mount != nil && b.Mount != nil:
		return a.Mount.Same(*b.Mount) || a.Mount.Point == b.Mount.Point &&
			(a.Mount.Namespace == b.Mount.Namespace || a.Mount.Namespace == 0 || b.Mount.Namespace == 0), true // 0: it is not known
	case a.Device != nil && b.Device != nil:
		return a.Device.Name == b.Device.Name, true
	case a.File != nil && b.File != nil:
		return a.File.Path == b.File.Path, true
	case a.Record != "" && b.Record != "":
		return a.Record == b.Record, true
	}
	return a.Pod != nil && b.Pod != nil && a.Pod.UID != "" && a.Pod.UID == b.Pod.UID, true
}

// identified reports whether a typed field of the action names the thing that it changes.
func (a Action) identified() bool {
	return a.Mount != nil || a.Device != nil || a.File != nil || a.Record != "" || a.Pod != nil
}

// Device is a block device as it is written down in plans, so that one which has taken its place since is not taken for it.
type Device struct {
	// Name is the kernel's, such as rbd3.
	Name string `json:"name"`
	// Sequence is the kernel's number for the disk behind the device, never used again. 0: the kernel has none (before
	// 5.15).
	Sequence uint64 `json:"sequence,omitempty"`
	// Image stands for Sequence if that is 0: the image that krbd has mapped, or the file of a loop device. Empty: not
	// known.
	Image string `json:"image,omitempty"`
}

// Known reports whether the device can be distinguished from a device that has taken its place.
func (d Device) Known() bool { return d.Sequence != 0 || d.Image != "" }

// File is a file or a directory as it is written down in plans. Another one that has taken its place since is not taken
// for it.
type File struct {
	// Path is absolute, in the kubelet's mount namespace.
	Path  string `json:"path"`
	Inode uint64 `json:"inode"`
	// Made is when it was made, in nanoseconds since 1970. 0: its file system does not say.
	Made int64 `json:"made,omitempty"`
}

// Applied is how an action went that did not fail.
type Applied struct {
	// Already is set if this call changed nothing, because the action's purpose had come about without it.
	Already bool
	// Undone is set if the action was not done, or has failed. Only one who verifies a plan is given such.
	Undone bool
	// Message says how it went, for people.
	Message string
}

// AlreadySo is the result of an action that had nothing left to do.
func AlreadySo(message string) Applied { return Applied{Already: true, Message: message} }
