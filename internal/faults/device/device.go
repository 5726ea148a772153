// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package device judges who holds a block device, or a file system that is on none. It may be in use as it should be, or
// left behind in a mount namespace that got a copy of the kubelet's mounts and kept it. The package says which copies may go.
//
// It decides from the kernel's word: the mount tables of the holder and of the kubelet, and on which directory of which
// file system a mount lies. The container runtime's word about a container only narrows that further. A message, a
// parameter or a name of a device narrows what is looked at and never widens what may be changed.
//
// It changes nothing but in Unmount, which removes one copy, never by force. It rests on package devholder, on the
// layout of the kubelet's directories, and on mount_namespaces(7).
package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

// Runtime is the container runtime of this node: a cri.Client.
type Runtime interface {
	// Owner returns the container that a process belongs to, from the text of its /proc/PID/cgroup.
	Owner(ctx context.Context, cgroup string) (cri.Owner, error)
	// Sandboxes lists the sandboxes of the pods.
	Sandboxes(ctx context.Context) ([]cri.Sandbox, error)
}

// Inspector looks at devices and file systems as the kubelet of this node has them. Its fields are set before its first use; then it may
// be used by several goroutines.
type Inspector struct {
	Kubelet kubelet.Locator
	Finder  *devholder.Finder
	// Runtime is nil if there is none: then no process is known to be in a container.
	Runtime Runtime
	// Pods describes the pods that hold something, for people; nil if they are not known.
	Pods kubelet.Pods
	// Claims knows the claims of pods; nil if they are not known.
	Claims Claims
	// Specs are those of the pods of this node; nil if they are not known.
	Specs kubelet.PodCache
	// Runner runs Job for Unmount; nil: one for each.
	Runner *subprocess.Runner
}

// Claims knows what the claims of pods are bound to.
type Claims interface {
	// PersistentVolumes returns the names of the PersistentVolumes of a pod, as far as they are known.
	PersistentVolumes(ctx context.Context, pod *corev1.Pod) []string
}

// Usage is a device, who holds it, and what may be done about that.
type Usage struct {
	*devholder.Report
	// Host is whether the kubelet's own namespace mounts a file system on the device: it is in use, not held.
	Host bool
	// HolderInfo has every holder, in the order of the report.
	HolderInfos []HolderInfo
	// LiveUse says which uses are as they should be; empty if there is none.
	LiveUse []string
	// NoPod is whether the kubelet has it mounted for the whole node alone, and no mount of a pod shows it.
	NoPod bool
	// Removable is whether the device can be released by unmounting copies: all of its mounts are such, and nothing but
	// descriptors of the device itself holds it otherwise.
	Removable bool
	// Why explains the decision.
	Why string
	// Left is set if it is a loop device that the kubelet has left of a raw block volume.
	Left *LeftLoop
	// PodReason says why it belongs to the pod that was asked about; empty if none was.
	PodReason string
}

// HolderInfo is a holder and who is behind it.
type HolderInfo struct {
	devholder.Holder
	// In is the container that its processes are in, Origin how a copy of a mount came there.
	In     HolderContainer
	Origin MountOrigin
	// Command is the name of the first process.
	Command string
	// RecordedMount is the mount as it is written down, for the kind mount.
	RecordedMount fault.Mount
	// Removable is whether the mount is a copy that may go, and Why why, or why not.
	Removable bool
	Why       string
	// Blocks is whether the kernel refuses to unmount the mount that Users was asked about because of it.
	Blocks bool
	// TableUnread is whether its mount table could not be read: then it is not known whether it is a copy.
	TableUnread bool

	tableOrder int  // in the table of its namespace
	seesAll    bool // whether nothing that keeps the namespace alive was hidden
}

// HolderContainer is the container that the processes of a holder are in.
type HolderContainer struct {
	// Owner is nil if they are in none that the runtime knows. Pod and Container name it.
	Owner     *cri.Owner
	Pod       fault.Pod
	Container string
	// Workload is what made the pod; empty if that is not known.
	Workload fault.Workload
	// Since is when the container was made.
	Since time.Time
}

// MountOrigin is how a copy of a mount came into a container.
type MountOrigin struct {
	// HostPath is the same directory on the host; empty if the mount lies on none of the kubelet's volume directories.
	HostPath string
	// Volume is the name of the volume by that path.
	Volume string
	// CarrierMount is the volume of the container that has carried the mount in.
	CarrierMount *cri.Mount
	// VolumeMount is the name of that volume in the pod; empty if the pod is not known.
	VolumeMount string
	// Patch is a strategic merge patch of the workload, in YAML, that prevents such copies.
	Patch string
}

// Name says in a few words what holds: where, and which processes.
func (h HolderInfo) Name() string {
	text := fmt.Sprintf("%s %q", h.Kind, h.Path)
	if len(h.PIDs) > 0 {
		text += fmt.Sprintf(" of process %d", h.PIDs[0])
	}
	if h.Command != "" {
		text += fmt.Sprintf(" (%s)", h.Command)
	}
	return text
}

// Inspect looks at one device. blockdev.ErrNotFound, blockdev.ErrChanged: it is gone, or another by now.
func (i *Inspector) Inspect(ctx context.Context, d blockdev.Device) (*Usage, error) {
	_, usage, err := i.inspectWithTables(ctx, d)
	return usage, err
}

func (i *Inspector) inspectWithTables(ctx context.Context, d blockdev.Device) (*inspection, *Usage, error) {
	inspection, err := i.newInspection(ctx)
	if err != nil {
		return nil, nil, err
	}
	report, err := i.Finder.Find(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	inspection.unseenReason = describeUnseen(report.Coverage.Mounts)
	usage, err := inspection.usageOf(ctx, report)
	return inspection, usage, err
}

// InspectWithProcesses is Inspect that looks for open files also where mounts explain by themselves why the device is
// busy.
func (i *Inspector) InspectWithProcesses(ctx context.Context, d blockdev.Device) (*Usage, error) {
	finder := *i.Finder
	finder.WithProcesses = true
	thorough := *i
	thorough.Finder = &finder
	return thorough.Inspect(ctx, d)
}

// FindAbandoned looks at every device that is mounted in some namespace, and not in the kubelet's, and at every file system
// on no device of which that is true and whose place the kubelet still has. The survey is of the pass that looked for them.
func (i *Inspector) FindAbandoned(ctx context.Context) ([]*Usage, mountns.Survey, error) {
	abandoned, err := i.findAbandoned(ctx)
	return abandoned.usages, abandoned.survey, err
}

// abandonedDevices is the result of FindAbandoned, and what it rests on.
type abandonedDevices struct {
	inspection *inspection
	reports    []*devholder.Report
	usages     []*Usage // of the reports
	survey     mountns.Survey
}

func (i *Inspector) findAbandoned(ctx context.Context) (found abandonedDevices, err error) {
	if found.inspection, err = i.newInspection(ctx); err != nil {
		return abandonedDevices{}, err
	}
	wanted := func(m mountns.Mount) bool { return found.inspection.mayKeep(ctx, m) }
	finder := *i.Finder
	if finder.Pass == nil { // else the mounts of the kubelet's namespace would be read a second time
		finder.Pass = found.inspection.node.Pass()
	}
	if found.reports, found.survey, err = finder.FindAbandoned(ctx, found.inspection.host, wanted); err != nil {
		return abandonedDevices{}, err
	}
	for _, report := range found.reports {
		found.inspection.unseenReason = describeUnseen(report.Coverage.Mounts)
		usage, err := found.inspection.usageOf(ctx, report)
		if err != nil {
			return abandonedDevices{}, err
		}
		found.usages = append(found.usages, usage)
	}
	return found, found.inspection.addLeftLoops(ctx, &found)
}

// Resolve finds the device that spec names, see blockdev.Sys.Resolve. Paths are those of the kubelet's root directory.
func (i *Inspector) Resolve(ctx context.Context, spec string) (blockdev.Device, error) {
	if !strings.HasPrefix(spec, "/") || i.Finder.Sys.Root != "" {
		return i.Finder.Sys.Resolve(spec)
	}
	n, err := i.Kubelet.Node(ctx)
	if err != nil {
		return blockdev.Device{}, err
	}
	if n.PID == 0 {
		return i.Finder.Sys.Resolve(spec)
	}
	d, err := blockdev.Sys{Root: "/proc/" + strconv.Itoa(n.PID) + "/root"}.Resolve(spec)
	if errors.Is(err, blockdev.ErrNotFound) {
		// Its node is gone, or never was where the kubelet is; the kernel may know it all the same.
		if name, ok := strings.CutPrefix(spec, "/dev/"); ok && !strings.Contains(name, "/") {
			return i.Finder.Sys.Resolve(name)
		}
	}
	return d, err
}

// usageOf completes a report.
func (n *inspection) usageOf(ctx context.Context, report *devholder.Report) (*Usage, error) {
	usage := &Usage{Report: report}
	var others []mountns.Namespace // that holders are mounted in
	for _, h := range report.Holders {
		if h.Kind == devholder.Mount && !n.isHostMount(h) && h.Mount.Namespace.Inode != 0 {
			others = append(others, h.Mount.Namespace)
		}
	}
	if !n.recorded {
		if err := n.spaces.addOwners(others); err != nil {
			return nil, fmt.Errorf("inspect holders of %q: %w", report.Device.Name, err)
		}
	}
	n.readTables(others)
	for _, h := range report.Holders {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("inspect holders of %q: %w", report.Device.Name, err)
		}
		p, live := n.ownerProcess(ctx, h), ""
		held := n.holderInfo(h, p)
		if held.Why == "" {
			live = n.judgeMount(ctx, &held, p.Unknown)
			n.addPatch(ctx, &held)
		}
		usage.HolderInfos = append(usage.HolderInfos, held)
		if n.isHostMount(h) {
			usage.Host = true
		}
		if live != "" && !slices.Contains(usage.LiveUse, live) {
			usage.LiveUse = append(usage.LiveUse, live)
		}
	}
	if usage.Host {
		subject := "a file system on it"
		if usage.anonymous() {
			subject = "it"
		}
		use := subject + " is mounted in the kubelet's own mount namespace"
		if usage.NoPod = len(usage.LiveUse) == 0 && n.stagedAlone(report.Holders); usage.NoPod {
			use += " for the whole node; kubediag scan --only LeftoverStaging --pods FILE says whether it is left over"
		}
		if point := n.hiddenAt(report.Holders); point != "" {
			use += fmt.Sprintf(", and another mount hides it at %q: the kubelet unmounts that one, and this one stays", point)
		}
		usage.LiveUse = slices.Insert(usage.LiveUse, 0, use)
	}
	usage.Removable, usage.Why = usage.judgeRemovable()
	return usage, nil
}

// stagedAlone reports whether each mount of the kubelet is at a staging path.
func (n *inspection) stagedAlone(holders []devholder.Holder) bool {
	return !slices.ContainsFunc(holders, func(h devholder.Holder) bool {
		_, staging := n.node.ParseStaging(h.Mount.Point)
		return n.isHostMount(h) && !staging
	})
}

// hiddenAt is a point at which another mount hides that of the kubelet; empty if a path of the node leads to any of its mounts.
func (n *inspection) hiddenAt(holders []devholder.Holder) (point string) {
	for _, h := range holders {
		if !n.isHostMount(h) {
			continue
		}
		if top, ok := n.table.Top(h.Mount.Point); ok && top.ID == h.Mount.ID || h.Mount.ID == 0 {
			return ""
		}
		point = h.Mount.Point
	}
	return point
}

// describeUse says that the device, by the name that it is given, is in use.
func (c *Usage) describeUse(name string) string {
	if c.NoPod {
		return name + " is mounted, and no pod is seen to use it: " + strings.Join(c.LiveUse, "; ")
	}
	return name + " is in normal use: " + strings.Join(c.LiveUse, "; ")
}

// judgeRemovable reports whether unmounting copies releases the device.
func (c *Usage) judgeRemovable() (removable bool, why string) {
	copies := 0
	for _, h := range c.HolderInfos {
		if h.Removable {
			copies++
		}
	}
	if len(c.LiveUse) > 0 {
		return false, c.describeUse(c.Name())
	}
	for _, h := range c.HolderInfos {
		switch {
		case h.Kind == devholder.Mount && !h.Removable:
			return false, fmt.Sprintf("the mount at %q in mount namespace %s stays: %s", h.Path, h.Mount.Namespace, h.Why)
		case h.Kind == devholder.StackedDevice:
			return false, fmt.Sprintf("device %s is made of it and must be removed first", h.Path)
		case h.Inferred:
			return false, fmt.Sprintf("%s may hold it: %s; a person must decide about it", h.Name(), h.Detail)
		case h.Kind != devholder.Mount && h.Kind != devholder.RawOpen:
			return false, fmt.Sprintf("%s holds it too and is no mount; a person must decide about it", h.Name())
		}
	}
	if copies == 0 {
		return false, "no mount holds it"
	}
	return true, fmt.Sprintf("it is held by %d mounts, each a copy of a mount that the kubelet has since removed", copies)
}

// IsHeld reports whether the device is held by a mount, or left over, and not in use as it should be.
func (c *Usage) IsHeld() bool {
	return len(c.LiveUse) == 0 && (c.Left != nil || slices.ContainsFunc(c.HolderInfos, func(h HolderInfo) bool { return h.Kind == devholder.Mount }))
}

// HasCopies reports whether one of the mounts is a copy of one of the kubelet's, or the device is one that it has left over.
func (c *Usage) HasCopies() bool {
	return c.Left != nil || slices.ContainsFunc(c.HolderInfos, func(h HolderInfo) bool { return h.Origin.HostPath != "" })
}

// HasUnreadTable reports whether it is unknown if one of the mounts is a copy of one of the kubelet's.
func (c *Usage) HasUnreadTable() bool {
	return slices.ContainsFunc(c.HolderInfos, func(h HolderInfo) bool { return h.TableUnread })
}

// Copies are the mounts that may go, the newest first, which is a safe order: a mount is newer than what it lies on.
func (c *Usage) Copies() []HolderInfo {
	var copies []HolderInfo
	for _, h := range c.HolderInfos {
		if h.Removable {
			copies = append(copies, h)
		}
	}
	slices.SortStableFunc(copies, func(a, b HolderInfo) int {
		return cmp.Or(cmp.Compare(b.RecordedMount.ID, a.RecordedMount.ID), cmp.Compare(b.tableOrder, a.tableOrder))
	})
	return copies
}
