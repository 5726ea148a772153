// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

// Findings returns the case as faults, one for each mount that holds the device, with what proves it.
func (c *Usage) Findings() []fault.Finding {
	if c.Left != nil {
		return []fault.Finding{c.leftFinding()}
	}
	var all []fault.Finding
	for _, h := range c.HolderInfos {
		if h.Kind != devholder.Mount {
			continue
		}
		details := fault.Details{Device: c.Device.Name, Workload: h.In.Workload, Place: fault.PlaceDevice}
		if len(h.PIDs) > 0 {
			details.HeldBy = &fault.Process{PID: h.PIDs[0], Command: h.Command}
		}
		switch {
		case h.Removable && c.Removable:
			details.Repair = fault.Unmount
		case h.Removable:
			details.Refusal = fault.Refuse(fault.InUse, c.Why)
		default:
			details.Refusal = fault.Refuse(fault.NotProven, h.Why)
		}
		all = append(all, fault.Finding{
			Code: c.code(), Pod: h.In.Pod, Container: h.In.Container, Volume: h.Origin.Volume, Mount: h.RecordedMount, Holder: h.Sentence(),
			Evidence: slices.Concat(c.evidence(), h.evidence()), Details: details,
		})
	}
	return all
}

// Sentence says who holds the device by which mount.
func (h HolderInfo) Sentence() string {
	text := "mount namespace " + h.Mount.Namespace.String()
	if len(h.PIDs) > 0 {
		text = fmt.Sprintf("process %d", h.PIDs[0])
		if h.Command != "" {
			text += fmt.Sprintf(" (%s)", h.Command)
		}
	}
	if h.In.Owner != nil {
		text += fmt.Sprintf(" in container %q of pod %s/%s", h.In.Container, h.In.Pod.Namespace, h.In.Pod.Name)
	}
	if of := h.In.Workload.String(); of != "" {
		text += " of " + of
	}
	if h.Origin.CarrierMount != nil {
		text += fmt.Sprintf(", by hostPath %q at %q", h.Origin.CarrierMount.HostPath, h.Origin.CarrierMount.ContainerPath)
		if h.Origin.VolumeMount != "" {
			text += fmt.Sprintf(" (volumeMount %q)", h.Origin.VolumeMount)
		}
		text += fmt.Sprintf(" with mountPropagation %s", h.Origin.CarrierMount.Propagation)
	}
	if !h.In.Since.IsZero() {
		text += ", since " + h.In.Since.UTC().Format(time.RFC3339)
	}
	return text
}

// evidence is what was seen of the device.
func (c *Usage) evidence() []string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	switch {
	case c.anonymous(): // its mounts show that it is alive
	case c.Untested != nil:
		add("the kernel could not be asked for device %s (%s): %v", c.Device.Node(), c.Device.Number, c.Untested)
	case c.Busy:
		add("the kernel refuses to open device %s (%s) exclusively: it is busy", c.Device.Node(), c.Device.Number)
	default:
		add("the kernel lets device %s (%s) be opened exclusively", c.Device.Node(), c.Device.Number)
	}
	for _, fs := range c.FileSystems {
		if c.anonymous() {
			break
		}
		add("a file system of type %s is alive on it: %s", fs.Type, fs.Evidence)
	}
	for _, h := range c.HolderInfos {
		switch {
		case h.Kind == devholder.Mount:
		case h.Inferred:
			add("perhaps held as well by %s: %s", h.Name(), h.Detail)
		default:
			add("held as well by %s", h.Name())
		}
	}
	if c.PodReason != "" {
		add("%s", c.PodReason)
	}
	for _, hidden := range c.Hidden {
		add("not all is explained; it may be held by %s", hidden)
	}
	add("looked at: %s", c.Coverage)
	return all
}

// evidence is what was seen of the mount.
func (h HolderInfo) evidence() []string {
	all := []string{
		fmt.Sprintf("mount %d of %q at %q in mount namespace %s", h.RecordedMount.MountInfoID, h.RecordedMount.Root,
			h.RecordedMount.Point, h.Mount.Namespace),
		"kept alive by " + h.namespaceHolderText(),
	}
	if h.Origin.HostPath != "" {
		all = append(all, fmt.Sprintf("the same directory on the host: %q, volume %q", h.Origin.HostPath, h.Origin.Volume))
	}
	if h.Removable {
		return append(all, "it can be unmounted there: "+h.Why)
	}
	return append(all, "it is left alone: "+h.Why)
}

// maxNamespaceHolders bounds how many are named of what keeps one namespace alive.
const maxNamespaceHolders = 10

// namespaceHolderText says what keeps the namespace of a mount alive.
func (h HolderInfo) namespaceHolderText() string {
	return namespaceHoldersText(h.NamespaceHolders, h.seesAll)
}

// DescribeNamespaceHolders says what keeps a namespace alive.
func DescribeNamespaceHolders(holders []mountns.Holder) string {
	return namespaceHoldersText(holders, sys.SeesEverything())
}

func namespaceHoldersText(holders []mountns.Holder, seesAll bool) string {
	var parts []string
	for _, k := range holders {
		switch k.Kind {
		case mountns.Process:
			parts = append(parts, fmt.Sprintf("process %d", k.PID))
		case mountns.Thread:
			parts = append(parts, fmt.Sprintf("thread %d of process %d", k.Number, k.PID))
		case mountns.Descriptor:
			parts = append(parts, fmt.Sprintf("descriptor %d of process %d", k.Number, k.PID))
		case mountns.NamedMount:
			parts = append(parts, fmt.Sprintf("the file %q that it is bound to in %s", k.Mount.Point, k.Mount.Namespace))
		}
	}
	if len(parts) > 0 {
		return strings.Join(fault.Most(parts, maxNamespaceHolders, "%d more"), ", ")
	}
	if !seesAll {
		return "something that was not found: a process that may not be looked into or does not show here, an open mount table, or a " +
			"descriptor in a socket"
	}
	return "something that was not found: an open mount table, or a descriptor in a socket"
}

// Describe says in words what the device is, if it is not held: free, in use as it should be, or held by something that
// is no mount.
func (c *Usage) Describe() string {
	name := c.Subject()
	switch {
	case len(c.LiveUse) > 0:
		return c.describeUse(name)
	case c.Left != nil && c.Removable:
		return fmt.Sprintf("%s is left over from raw block volume %q of a pod that is gone, and nothing uses it", name, c.Left.Volume)
	case c.IsHeld() && c.Left == nil:
		return name + " is held by " + c.holderNames() + "; " + c.Why
	case len(c.HolderInfos) > 0 && !slices.ContainsFunc(c.HolderInfos, func(h HolderInfo) bool { return !h.Inferred }):
		return fmt.Sprintf("%s is busy, and what holds it is not proven: %s, a layer of which is no longer where it was; looked at: %s", name, c.holderNames(), c.Coverage)
	case len(c.HolderInfos) > 0 && !slices.ContainsFunc(c.HolderInfos, func(h HolderInfo) bool { return h.Kind != devholder.StackedDevice }):
		return fmt.Sprintf("%s is not mounted, but devices made of it use it: %s; looked at: %s", name, c.holderNames(), c.Coverage)
	case len(c.HolderInfos) > 0:
		return fmt.Sprintf("%s is held by %s, and mounted nowhere; looked at: %s", name, c.holderNames(), c.Coverage)
	case len(c.Hidden) > 0:
		return fmt.Sprintf("%s is busy, and its holder hidden: it may be %s; looked at: %s", name, strings.Join(c.Hidden, "; or "), c.Coverage)
	case c.Untested != nil:
		return fmt.Sprintf("%s could not be tested: %v; looked at: %s", name, c.Untested, c.Coverage)
	}
	return fmt.Sprintf("%s is free: the kernel lets it be opened exclusively, and it is mounted nowhere; looked at: %s", name, c.Coverage)
}

// Summarize is a look at devices as all looks give it. A mount that a container made itself is its own, and no fault;
// nothing is known of a device whose mounts may be copies.
func Summarize(usages []*Usage) mountstate.Survey {
	sum := mountstate.Survey{Coverage: mountstate.Coverage{Devices: len(usages)}}
	for _, c := range usages {
		sum.Merge(mountstate.Survey{Coverage: mountstate.Coverage{Namespaces: &c.Coverage.Mounts, Notes: c.SilentSources()}})
		sum.Unknown.AddSkipped(c.Coverage.Mounts.Skipped...)
		switch {
		case c.IsHeld() && c.HasCopies():
			sum.Findings = append(sum.Findings, c.Findings()...)
		case c.IsHeld() && c.HasUnreadTable():
			sum.Unknown.AddPlace(mountstate.Place{Point: c.Device.Node(), Reason: "it is held by " + c.holderNames() + "; " + c.Why})
		}
	}
	return sum
}

// SilentSources name the sources that did not answer and could have shown more about the device.
func (c *Usage) SilentSources() (list []string) {
	if errors.Is(c.Untested, blockdev.ErrNoAnswer) {
		list = append(list, fmt.Sprintf("waited in vain for device %s to say whether it is busy: %v", c.Device.Node(), c.Untested))
	}
	if n := c.Coverage.Unanswered; n == 1 {
		list = append(list, fmt.Sprintf("waited in vain for 1 process, which may hold %s", c.Name()))
	} else if n > 1 {
		list = append(list, fmt.Sprintf("waited in vain for %d processes, which may hold %s", n, c.Name()))
	}
	return list
}

// maxNames bounds how many holders are named in a sentence.
const maxNames = 5

func (c *Usage) holderNames() string {
	var names []string
	for _, h := range c.HolderInfos {
		if h.Inferred {
			names = append(names, "perhaps "+h.Name())
			continue
		}
		names = append(names, h.Name())
	}
	return strings.Join(fault.Most(names, maxNames, "%d more"), ", ")
}
