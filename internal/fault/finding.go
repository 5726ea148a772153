// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

// Code names a fault of the catalogue. Codes are stable: they appear in statuses, metrics and runbooks.
type Code string

// Absence says that no fault of a code is there any more, in a pod or, if Pod has no name, in the whole look.
type Absence struct {
	Code Code `json:"code"`
	Pod  Pod  `json:"pod,omitzero"`
}

// Covers reports whether the finding is of a fault that is not there any more.
func (a Absence) Covers(f Finding) bool {
	return a.Code == f.Code && (a.Pod.Name == "" || a.Pod.Namespace == f.Pod.Namespace && a.Pod.Name == f.Pod.Name)
}

// Finding is one fault that was found: its place and its proof.
type Finding struct {
	Code      Code     `json:"code"`
	Pod       Pod      `json:"pod"`
	Container string   `json:"container,omitempty"`
	Volume    string   `json:"volume,omitempty"`
	Mount     Mount    `json:"mount"`
	Holder    string   `json:"holder,omitempty"`
	Evidence  []string `json:"evidence,omitempty"`
	// Details are the facts that programs read. Impact, repair and commands rest on them, and on no text.
	Details Details `json:"details,omitzero"`
	// Healed is set by a recoverer after it has verified the repair.
	Healed bool `json:"healed,omitempty"`
}

// Details are facts about a fault beside its place. A fact that is not known is empty.
type Details struct {
	// Workload is the controller that made the pod.
	Workload Workload `json:"workload,omitzero"`
	// Container is whether the container runs.
	Container ContainerState `json:"container,omitempty"`
	// Driver is the name of the CSI driver of the volume.
	Driver string `json:"driver,omitempty"`
	// PersistentVolume is the name of the volume's PersistentVolume, and SpecVolume its name in the pod's spec if Volume has
	// the former.
	PersistentVolume string `json:"persistentVolume,omitempty"`
	SpecVolume       string `json:"specVolume,omitempty"`
	// Daemon is the process that serves the file system of the volume, HeldBy the process that holds the device.
	Daemon *Process `json:"daemon,omitempty"`
	HeldBy *Process `json:"heldBy,omitempty"`
	// Device is the kernel's name of the device that is held, such as rbd3.
	Device string `json:"device,omitempty"`
	// Path is the directory that is left of a pod, or the path of the node at which mounts lie.
	Path string `json:"path,omitempty"`
	// Layers is how many mounts lie on each other at the path.
	Layers int `json:"layers,omitempty"`
	// Place is the kind of thing that is at fault, PodState the state of its pod.
	Place    Place    `json:"place,omitempty"`
	PodState PodState `json:"podState,omitempty"`
	// Reason is the way in which a StuckTermination came about.
	Reason Reason `json:"reason,omitempty"`
	// KeepsPod is set if the pod is being deleted, no container of it runs any more, and the mount at fault is still there.
	KeepsPod bool `json:"keepsPod,omitempty"`
	// SharedStaging is how many other pods of the node use the volume, if its staging path is dead. The kubelet has the
	// driver stage a volume again only when no pod uses it.
	SharedStaging int `json:"sharedStaging,omitempty"`
	// Repair is the change that repairs the fault without loss of data or work. Empty: there is none now.
	Repair ActionKind `json:"repair,omitempty"`
	// Refusal says why there is no such change now. It is empty if Repair is set.
	Refusal Refusal `json:"refusal,omitzero"`
}

// Workload is the object that owns a pod.
type Workload struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// String is the workload for people, such as "DaemonSet node-exporter"; empty if it is not known.
func (w Workload) String() string {
	if w == (Workload{}) {
		return ""
	}
	return w.Kind + " " + w.Name
}

// ContainerState says whether a container runs. Empty: it is not known, or the container does not run again.
type ContainerState string

// States of a container.
const (
	ContainerRuns ContainerState = "Running"
	// ContainerDown: it does not run, and is to be started.
	ContainerDown ContainerState = "Down"
)

// Process is a process of the node.
type Process struct {
	PID     int          `json:"pid"`
	Command string       `json:"command,omitempty"`
	State   ProcessState `json:"state,omitempty"`
}

// ProcessState says why a process does nothing. Empty: it can run.
type ProcessState string

// States of a process.
const (
	// ProcessStopped: a signal has stopped it.
	ProcessStopped ProcessState = "Stopped"
	// ProcessBlocked: it waits in the kernel and cannot be interrupted.
	ProcessBlocked ProcessState = "Blocked"
	// ProcessEnded: it has ended, and its parent has not waited for it.
	ProcessEnded ProcessState = "Ended"
)

// Pod identifies a pod. UID decides; the names are for people.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// Mount is one mount of a node as it is written down in plans, journals and statuses.
type Mount struct {
	// ID is never used again by the kernel (Linux 6.8). 0 if the kernel has no such id; the mount is then identified
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

// Same reports whether both mean one mount of one namespace. If both have an ID, it decides; otherwise everything else
// must agree, except the type of the file system.
func (m Mount) Same(o Mount) bool {
	if m.Namespace != o.Namespace {
		return false
	}
	if m.ID != 0 && o.ID != 0 {
		return m.ID == o.ID
	}
	return m.MountInfoID == o.MountInfoID && m.ParentID == o.ParentID && m.Device == o.Device && m.Root == o.Root && m.Point == o.Point
}
