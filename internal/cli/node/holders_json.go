// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/jsonparts"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/mountstate"
)

// holdersReport is the report of holders about a device that was named, as it is in JSON.
type holdersReport struct {
	SchemaVersion int `json:"schemaVersion"`
	deviceUse
}

// abandonedReport is the report of holders if no device was named. Each has an object of its own.
type abandonedReport struct {
	SchemaVersion int `json:"schemaVersion"`
	// Devices is never null.
	Devices []deviceUse    `json:"devices"`
	Looked  holderCoverage `json:"looked"`
}

// deviceUse is a device and who uses it.
type deviceUse struct {
	Device useDevice `json:"device"`
	// Busy is the kernel's answer to a claim of the device. Without an answer it is whether a holder was found.
	Busy bool `json:"busy"`
	// Holders and Hidden are never null.
	Holders []useHolder `json:"holders"`
	// Hidden lists possible unseen holders, if the holders that were found do not explain that it is busy.
	Hidden []string       `json:"hidden"`
	Looked holderCoverage `json:"looked"`
	// foreign is whether it is in use by mounts that never were the kubelet's, partial whether there may be holders
	// that were not seen.
	// left is whether it is a loop device of a pod that is gone.
	foreign, partial, left bool
	// release is the command that releases it; empty: there is none.
	release string
}

// The states of a device.
const (
	stateFree  = "free"  // nothing uses it
	stateInUse = "inUse" // as it should be
	stateHeld  = "held"
	// stateUnknown: it is mounted where the caller may not look, and may be held or in use.
	stateUnknown = "unknown"
)

// useDevice is the device.
type useDevice struct {
	Name   string `json:"name"`
	Number string `json:"number"`
	Kind   string `json:"kind"`
	// Node need not be there. It is empty for a file system that is on no device, whose kind is "anonymous".
	Node string `json:"node"`
	// Parent is the disk that it is a partition of.
	Parent string `json:"parent,omitempty"`
	// MountPoint is where the file system is mounted that a path lies on, where one was given.
	MountPoint  string             `json:"mountPoint,omitempty"`
	FileSystems []activeFileSystem `json:"fileSystems,omitempty"`
	State       string             `json:"state"`
	// InUseBy is why it is in use as it should be.
	InUseBy []string `json:"inUseBy,omitempty"`
	// Removable is whether kubediag may release it, and Why why not.
	Removable bool   `json:"removable"`
	Why       string `json:"why,omitempty"`
	// Untested is why the kernel gave no answer to a claim of the device.
	Untested string `json:"untested,omitempty"`
}

// activeFileSystem is a file system that is alive on the device.
type activeFileSystem struct {
	Type     string `json:"type"`
	Evidence string `json:"evidence"`
}

// useHolder is one thing that uses a device.
type useHolder struct {
	Kind string `json:"kind"`
	// MountNamespace is an inode number. It is 0 if the holder is no mount, and the mount of its file is not known.
	MountNamespace uint64 `json:"mountNamespace"`
	// PIDs is never null. Command is the name that the first of them has given itself.
	PIDs    []int  `json:"pids"`
	Command string `json:"command,omitempty"`
	// MountPoint is of the holder if it is a mount, else of the mount by which it has its file.
	MountPoint string       `json:"mountPoint"`
	Container  useContainer `json:",inline"`
	// Mount is there for mounts only, Path for all others: a file, or a node.
	Mount *scanMount `json:"mount,omitempty"`
	Path  string     `json:"path,omitempty"`
	// KeptBy describes the holders of the mount namespace. inhabited is whether they are processes in it and no others.
	KeptBy    string `json:"keptBy,omitempty"`
	inhabited bool
	Origin    useOrigin  `json:",inline"`
	Verdict   useVerdict `json:",inline"`
}

// MarshalJSON implements json.Marshaler: a holder is one flat object.
func (h useHolder) MarshalJSON() ([]byte, error) { return jsonparts.Marshal(h) }

// useContainer is the container that a holder is in. All of it is empty if it is in none that the runtime knows.
type useContainer struct {
	Pod   scanPod `json:"pod"`
	Name  string  `json:"container"`
	ID    string  `json:"containerID,omitempty"`
	Image string  `json:"image,omitempty"`
	// Workload is the controller that made the pod.
	Workload string `json:"workload,omitempty"`
	// Since is when the container was made.
	Since *time.Time `json:"since,omitempty"`
}

// useOrigin is how a copy of a mount came into a container.
type useOrigin struct {
	// HostPath is the same directory on the host, and Volume the volume that was mounted there. VolumeMount has carried the
	// mount into the container.
	HostPath    string       `json:"hostPath,omitempty"`
	Volume      string       `json:"volume,omitempty"`
	VolumeMount *volumeMount `json:"volumeMount,omitempty"`
	// Patch is a strategic merge patch, in YAML, that keeps it from happening again.
	Patch string `json:"patch,omitempty"`
}

// useVerdict says if a holder may be removed.
type useVerdict struct {
	Detail string `json:"detail,omitempty"`
	// Inferred is whether this was concluded from a path that no longer exists.
	Inferred bool `json:"inferred,omitempty"`
	// Blocks is whether the kernel refuses to unmount the mount that was named because of it.
	Blocks bool `json:"blocks,omitempty"`
	// Removable is whether kubediag may unmount it, and Why why, or why not.
	Removable bool   `json:"removable"`
	Why       string `json:"why,omitempty"`
}

// volumeMount is one of a container. Its name is empty if the pod's spec is not known.
type volumeMount struct {
	Name             string `json:"name,omitempty"`
	HostPath         string `json:"hostPath"`
	MountPath        string `json:"mountPath"`
	ReadOnly         bool   `json:"readOnly"`
	MountPropagation string `json:"mountPropagation"`
}

// newDeviceUse makes the report of a device from its usage. inUse has the reasons why the device is in use as it should be.
// If the kernel gave no answer and no holder was found, it is an error, because such a report proves nothing.
func newDeviceUse(usage *device.Usage, inUse []string) (deviceUse, error) {
	l := usage.Coverage
	u := deviceUse{Busy: usage.Busy, Holders: []useHolder{}, Hidden: append([]string{}, usage.Hidden...), Looked: holderCoverage{
		Passed: namespaceCoverage(l.Mounts), Processes: processCoverage{
			l.Processes, l.Tasks, l.Threads, l.Links, l.Denied, l.Unanswered, l.Overlays, l.Unplaced, l.Loops, l.SilentLoops, l.Unnamed,
		},
	}}
	state := stateFree
	switch {
	case len(inUse) > 0:
		state = stateInUse
	case usage.Busy || len(usage.Holders) > 0 || usage.Left != nil:
		state = stateHeld
	}
	d := usage.Device
	u.Device = useDevice{
		Name: d.Name, Number: d.Number.String(), Kind: string(d.Kind), Node: d.Node(), Parent: d.Parent,
		State: state, InUseBy: inUse, Removable: usage.Removable, Why: usage.Why,
	}
	if d.Kind == blockdev.Anonymous {
		u.Device.Node = ""
	}
	for _, fs := range usage.FileSystems {
		u.Device.FileSystems = append(u.Device.FileSystems, activeFileSystem{fs.Type, fs.Evidence})
	}
	if usage.Untested != nil {
		u.Device.Untested = usage.Untested.Error()
		if !usage.Busy && len(usage.Holders) == 0 {
			return deviceUse{}, fmt.Errorf("ask the kernel whether %q is busy: %w", d.Name, usage.Untested)
		}
	}
	for _, h := range usage.HolderInfos {
		u.Holders = append(u.Holders, newUseHolder(h))
	}
	return u, nil
}

func newUseHolder(h device.HolderInfo) useHolder {
	u := useHolder{
		Kind: string(h.Kind), MountNamespace: h.Mount.Namespace.Inode, PIDs: append([]int{}, h.PIDs...), Command: h.Command,
		Path:      h.Path,
		Container: useContainer{Pod: scanPod{h.In.Pod.UID, h.In.Pod.Namespace, h.In.Pod.Name}, Name: h.In.Container, Workload: h.In.Workload.String()},
		Origin:    useOrigin{HostPath: h.Origin.HostPath, Volume: h.Origin.Volume, Patch: h.Origin.Patch},
		Verdict:   useVerdict{Detail: h.Detail, Inferred: h.Inferred, Blocks: h.Blocks, Removable: h.Removable, Why: h.Why},
	}
	if m := h.Through; m.Point != "" {
		u.MountPoint, u.MountNamespace = m.Point, m.Namespace.Inode
	}
	if m := h.Mount; m.Point != "" {
		u.MountPoint, u.Path = m.Point, ""
		u.KeptBy = device.DescribeNamespaceHolders(h.NamespaceHolders)
		outside := func(k mountns.Holder) bool { return k.Kind != mountns.Process }
		u.inhabited = len(h.NamespaceHolders) > 0 && !slices.ContainsFunc(h.NamespaceHolders, outside)
		mount := newScanMount(faults.MountOf(m))
		mount.Namespace, u.Mount = 0, &mount // the namespace has a field of its own
	}
	if !h.In.Since.IsZero() {
		since := h.In.Since.UTC()
		u.Container.Since = &since
	}
	if h.In.Owner != nil {
		u.Container.ID, u.Container.Image = h.In.Owner.ContainerID, h.In.Owner.Image
	}
	if c := h.Origin.CarrierMount; c != nil {
		propagation := cmp.Or(c.Propagation, cri.PropagationNone)
		u.Origin.VolumeMount = &volumeMount{h.Origin.VolumeMount, c.HostPath, c.ContainerPath, c.ReadOnly, string(propagation)}
	}
	return u
}

// holderCoverage is the coverage of holders. If no device was named, that of the whole report has the origin of the look
// and its pass over the mounts. The coverage of each device then has the processes that were read because of it.
type holderCoverage struct {
	Passed    namespaceCoverage `json:",inline"`
	Processes processCoverage   `json:",inline"`
	Origin    coverageOrigin    `json:",inline"`
}

// MarshalJSON implements json.Marshaler: the coverage is one flat object.
func (l holderCoverage) MarshalJSON() ([]byte, error) { return jsonparts.Marshal(l) }

// coverageOrigin is whose host is meant.
type coverageOrigin struct {
	KubeletRoot string `json:"kubeletRoot,omitempty"`
	// KubeletPID is 0 if no kubelet process was made use of, and the mount namespace is that of the shell.
	KubeletPID int `json:"kubeletPID,omitempty"`
	// MountNamespace is an inode number.
	MountNamespace uint64 `json:"mountNamespace,omitempty"`
	// NameErrors are the errors of the container runtime.
	NameErrors   []string `json:"nameErrors,omitempty"`
	Milliseconds float64  `json:"milliseconds,omitempty"`
	// NotLookedAt are the gaps of the look. A holder may be in each.
	NotLookedAt []mountstate.Gap `json:"notLookedAt,omitempty"`
	// Notes are the assumptions behind the result, and the sources that did not answer in time.
	Notes []string `json:"notes,omitempty"`
	// blind is whether the caller lacks the privileges to see the mounts and files of others.
	blind bool
}

// namespaceCoverage is the pass over all mount namespaces: a mountns.Survey with the JSON of this report.
type namespaceCoverage struct {
	// Backend is "kernel", which sees all of them, or "procfs".
	Backend    string `json:"backend"`
	Namespaces int    `json:"namespaces"`
	Mounts     int    `json:"mounts"`
	// Denied counts processes whose mount namespace may not be read, Partial namespaces that were seen in part.
	Denied     int   `json:"denied"`
	DeniedPIDs []int `json:"-"` // as far as they are known
	Partial    int   `json:"partial"`
	// Skipped are the things that were left out because a bound was met.
	Skipped []string `json:"-"`
}

// processCoverage is the look beyond mounts. If the mounts explain everything, there was no such look, and Looked is
// false.
type processCoverage struct {
	Looked bool `json:"processes"`
	// Tasks counts the processes that were read, and with Threads also their threads. Links counts their open files.
	Tasks   int  `json:"tasks"`
	Threads bool `json:"threads"`
	Links   int  `json:"links"`
	// Locked counts processes that could not be read, Stuck those that did not answer in time.
	Locked   int `json:"locked"`
	Stuck    int `json:"stuck"`
	Overlays int `json:"overlays"`
	// Unplaced counts overlays with a layer that could not be found.
	Unplaced int `json:"unplaced"`
	Loops    int `json:"loops"`
	// SilentLoops counts loop devices whose file could not be placed, because its file system does not answer.
	SilentLoops int `json:"silentLoops,omitempty"`
	// Unnamed counts holders beyond the most that are named.
	Unnamed int `json:"unnamed"`
}

// mayHideHolder reports whether something may hold a device and was not looked at.
func (l holderCoverage) mayHideHolder() bool { return len(l.Origin.NotLookedAt) > 0 }

func countProcesses(n int) string { return verb.Plural(n, "process", "processes") }
