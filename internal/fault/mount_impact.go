// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

// Keys of the answer of a node about the end of a daemon, of a driver or of the node itself.
const (
	// KeyMountImpact holds the MountImpacts, as a JSON list: volumes that daemons serve come first.
	KeyMountImpact = "diagnoser.system.mount_impact.pods"
	// KeyMountImpactUnknown has a sentence for each part of the node that was not looked at, as a JSON list; absent if there is none.
	KeyMountImpactUnknown = "diagnoser.system.mount_impact.unknown"
)

// MountImpact is a volume of a pod: the daemons that it needs, how it comes back without them, and whether it can be unmounted now.
type MountImpact struct {
	Pod Pod `json:"pod"`
	// Volume is the kubelet's name: that of the PersistentVolume if it comes from a claim. Then SpecVolume is its name in the pod's spec, if
	// that is known.
	Volume     string `json:"volume"`
	SpecVolume string `json:"specVolume,omitempty"`
	Point      string `json:"point"`
	FSType     string `json:"fsType"`
	// Driver is the name of its CSI driver; empty if it has none.
	Driver   string   `json:"driver,omitempty"`
	ServedBy ServedBy `json:"servedBy"`
	// Daemons are the processes that serve it, one of each container. DaemonUnknown says why there is none.
	Daemons       []ServingDaemon `json:"daemons,omitempty"`
	DaemonUnknown string          `json:"daemonUnknown,omitempty"`
	Returns       Return          `json:"returns"`
	// UnmountRefusal says why the volume cannot be unmounted now; empty: no obstacle was seen.
	UnmountRefusal string `json:"unmountRefusal,omitempty"`
}

// ServingDaemon is a process that serves the file system of a volume, or the container of the driver that most likely has that process.
type ServingDaemon struct {
	// PID is 0 if only the driver is known.
	PID     int    `json:"pid,omitempty"`
	Command string `json:"command,omitempty"`
	// Pod and Container are empty for a process that is in no pod. PodUnknown says why they are not known.
	Pod        Pod    `json:"pod,omitzero"`
	Container  string `json:"container,omitempty"`
	PodUnknown string `json:"podUnknown,omitempty"`
}

// ServedBy is the kind of server of the file system of a volume.
type ServedBy string

// Kinds of servers.
const (
	// ServedByDaemon: a process of the node. The volume is lost when it ends.
	ServedByDaemon ServedBy = "Daemon"
	// ServedByKernel: the kernel, by itself or as the client of another machine.
	ServedByKernel ServedBy = "Kernel"
	// ServedByUnknown: a device that a process of the node may serve.
	ServedByUnknown ServedBy = "Unknown"
)

// Return says how a pod that runs gets its volume back when the daemon has ended and its driver has mounted it again.
type Return string

// Ways back.
const (
	// ReturnNotLost: the volume needs no daemon.
	ReturnNotLost Return = "NotLost"
	// ReturnByItself: a mount over the volume reaches every container that has it.
	ReturnByItself Return = "ByItself"
	// ReturnRepair: kubediag can put the volume that the driver has staged again in the place of the dead one, in containers that run, too.
	ReturnRepair Return = "Repair"
	// ReturnNewPod: only a new pod gets it.
	ReturnNewPod Return = "NewPod"
)
