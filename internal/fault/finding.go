// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

// Code names a fault of the catalogue. Codes are stable: they appear in statuses, metrics and runbooks.
type Code string

// Finding is one fault that was found: where it is and what proves it.
type Finding struct {
	Code      Code     `json:"code"`
	Pod       Pod      `json:"pod"`
	Container string   `json:"container,omitempty"`
	Volume    string   `json:"volume,omitempty"`
	Mount     Mount    `json:"mount"`
	Holder    string   `json:"holder,omitempty"`
	Evidence  []string `json:"evidence,omitempty"`
	// Healed is set by a recoverer after it has verified the repair.
	Healed bool `json:"healed,omitempty"`
}

// Pod identifies a pod. UID decides; the names are for people.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// Mount is one mount of a node as it is written down in plans, journals and statuses.
type Mount struct {
	// ID is never used again by the kernel (Linux 6.8). 0 where the kernel has no such id; the mount is then identified
	// by MountInfoID, ParentID, Root, Point and Device together.
	ID uint64 `json:"id,omitempty"`
	// MountInfoID and ParentID are columns 1 and 2 of mountinfo.
	MountInfoID int `json:"mountInfoID,omitempty"`
	ParentID    int `json:"parentID,omitempty"`
	// Namespace is the inode number of the mount namespace.
	Namespace uint64 `json:"namespace,omitempty"`
	// Device is "major:minor".
	Device string `json:"device,omitempty"`
	// Root keeps the kernel's mark //deleted.
	Root   string `json:"root,omitempty"`
	Point  string `json:"point,omitempty"`
	FSType string `json:"fsType,omitempty"`
}
