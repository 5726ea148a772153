// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package volume judges the volumes of pods that lie on file systems which can die under them: whether the mount at the
// place where the kubelet keeps a volume answers, whether it is still the directory that the driver has staged for it,
// who else has a copy of it, and what may be put in its place.
//
// What is a volume of which pod is decided by the kubelet's directories and its records, by the kernel's word on each
// mount and, where it is known, by the pod's spec. No text of a container plays a part. Nothing is asked of a file system
// but by a process that can be lost, and a staging path that has not answered is never looked into: a lookup through it
// would change the state of what hangs on it.
//
// It changes nothing but in Apply, which puts a source in the place of one mount, in a process that can be lost. It rests
// on the layout in kubernetes/pkg/volume/csi, on mount_namespaces(7), and on how the kernel attaches mounts: it refuses
// with ENOENT where the root, or a directory above it, has lost its name.
package volume

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

// Prober asks mounts whether they are alive, and never hangs: a *probe.Prober.
type Prober interface {
	// Ask gives one answer for each target, in their order.
	Ask(ctx context.Context, targets []probe.Target) ([]probe.Answer, error)
}

// Runtime is the container runtime of this node: a *cri.Client.
type Runtime interface {
	// Owner tells which container a process belongs to, from the text of its /proc/PID/cgroup.
	Owner(ctx context.Context, cgroup string) (cri.Owner, error)
}

// Pods is where pods come from.
type Pods interface {
	// PodByUID gives the pod as it is known now; nil where it is not.
	PodByUID(uid string) *corev1.Pod
}

// Inspector looks at the volumes of a node. Its fields are set before its first use; then it may be used by several
// goroutines.
type Inspector struct {
	Kubelet kubelet.Locator
	Scanner *mountns.Scanner
	Prober  Prober
	// Runtime is nil where there is none: then no copy in a container is replaced.
	Runtime Runtime
	// Pods is nil where pods are not known: then hostPath volumes are not looked at.
	Pods Pods
	// Runner runs Job for Apply; nil: one for each step.
	Runner *subprocess.Runner
	// Silence is for how long a connection must have been silent before Apply aborts it; 0: 30 seconds.
	Silence time.Duration

	askers          subprocess.Runner // bounds the processes that wait for a connection that is to be aborted
	unrelatedMounts unrelatedMounts
	ownerCache      ownerCache
}

// Selection narrows a look. The zero value is every volume of the node.
type Selection struct {
	PodUID string
	// Volume is the kubelet's name of the volume; empty for all.
	Volume string
}

// Survey is what a look has found.
type Survey struct {
	// Volumes are those that were asked, healthy ones included, by pod, plugin and name.
	Volumes []*Volume
	// Namespace is the inode number of the kubelet's mount namespace.
	Namespace uint64
	Coverage  Coverage
}

// Coverage says what a look took, so that finding nothing can be told from not having looked.
type Coverage struct {
	// Mounts is how many mounts the kubelet's namespace has, Asked how many mounts were asked in all namespaces.
	Mounts, Asked int
	// Namespaces is what the pass over other mount namespaces looked at; nil where none was needed.
	Namespaces *mountns.Survey
	Took       time.Duration
	// Incomplete says, in sentences, what could not be looked at.
	Incomplete []string
}

// Broken lists the volumes that have a fault, or a copy that has one.
func (s *Survey) Broken() []*Volume {
	var broken []*Volume
	for _, v := range s.Volumes {
		if v.Broken() {
			broken = append(broken, v)
		}
	}
	return broken
}

// Volume is one volume of one pod on this node.
type Volume struct {
	Pod fault.Pod
	// Plugin is the name of the volume plugin, such as kubernetes.io/csi; HostPathPlugin for a hostPath.
	Plugin string
	// Name is the kubelet's name of it: that of the PersistentVolume where it comes from a claim.
	Name string
	// Point is where the kubelet keeps it, or the path of a hostPath.
	Point string
	// Mount is the visible mount at Point, or for a hostPath the one that Point lies on. The zero value: none.
	Mount mountns.Mount
	// HiddenMounts are mounts that Mount hides, the lowest first.
	HiddenMounts []mountinfo.Mount
	// Record is what the kubelet has written down; nil where there is none, then NoRecordReason says why.
	Record         *kubelet.VolumeRecord
	NoRecordReason string
	// Staging is where the driver has mounted the volume for the whole node; nil where there is no such thing.
	Staging *Staging
	// Answer is what Mount said.
	Answer probe.Answer
	// Code is the fault; empty: healthy, as far as could be seen.
	Code fault.Code
	// Evidence is what was seen, in sentences.
	Evidence []string
	// Source is what belongs in the place of Mount and its copies; nil where there is none, then NoSourceReason says why.
	Source         *Source
	NoSourceReason string
	// Copies are the broken mounts of the same directory, or of one in it: the kubelet's subPath binds, then those in
	// containers, then all others.
	Copies []*Copy
	// ForeignCopies is how many copies there are in containers of other pods, that of the driver among them, in mount namespaces
	// whose processes are in no container, as services of the node have them, and in those that a workload has made for
	// itself: they are theirs.
	ForeignCopies int
	// SharedWith are the other pods that have a mount of the same broken file system, at most maxShares of them, and SharedWithCount is
	// how many there are.
	SharedWith      []fault.Pod
	SharedWithCount int
	// DaemonNotes says, in sentences, what is known of the daemon that serves the file system.
	DaemonNotes []string
	// Daemon is the first process that serves it; nil: none was found.
	Daemon *fault.Process
	// WrittenToNodeDisk has the names of what was written to the node's own disk instead of to the volume; at most maxSplit of them.
	WrittenToNodeDisk []string

	pod      *corev1.Pod // nil where it is not known
	spec     corev1.Volume
	location stagedLocation
	nested   int // mounts that lie on its mount
	// notKnown is whether nothing can be said about its mount.
	notKnown bool
	// unstableInodes is whether its server gives a directory another inode number every time.
	unstableInodes bool
}

// Broken tells whether the volume has a fault, or a copy of it has one.
func (v *Volume) Broken() bool { return v.Code != "" || len(v.Copies) > 0 }

// HostPathPlugin is the Plugin of a hostPath volume, which the kubelet keeps nowhere.
const HostPathPlugin = "kubernetes.io/host-path"

// Staging is where a driver has mounted a volume for the whole node.
type Staging struct {
	Point  string
	Record *kubelet.VolumeRecord
	// Mount is the visible mount there; the zero value: none.
	Mount  mountns.Mount
	Answer probe.Answer
}

// Source is what belongs in the place of a mount: a directory of a mount that is alive.
type Source struct {
	// Mount is what it is looked up in, as seen in the kubelet's namespace, and Below the way from its root; empty: the root.
	Mount fault.Mount `json:"mount"`
	Below string      `json:"below,omitempty"`
	// Path is the same as a path of the host, for people.
	Path string `json:"path"`
	// Device and Inode are what it answered with, FSType what it is on.
	Device string `json:"device"`
	Inode  uint64 `json:"inode"`
	FSType string `json:"fsType,omitempty"`
	// Why says why it is the same volume.
	Why string `json:"why"`

	dir bool
}

// Copy is a broken mount of a volume's directory, or of one in it, at another place.
type Copy struct {
	mountns.Mount
	// PIDs are processes that are in its namespace; none for the kubelet's own.
	PIDs []int
	// Pod, Container and ContainerID say whose it is, where that is known.
	Pod         fault.Pod
	Container   string
	ContainerID string
	// Path is where the container was to have it, and HostPath what it was made from, as the runtime was told.
	Path, HostPath string
	// SubPath is the way to it from the volume's directory; empty: that directory.
	SubPath string
	Answer  probe.Answer
	Code    fault.Code
	// Replaceable is whether it may be replaced where there is a source, and Why why, or why not.
	Replaceable bool
	Why         string
	// Source is what belongs in its place; nil where there is none.
	Source *Source

	onHost bool
	volume *Volume
	told   *cri.Mount // the runtime's record of it
	// named is the subPath of the pod's spec where that is not SubPath: then it must lead there by a symbolic link.
	named string
}
