// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// Keys of the results.
const (
	// keyReleaseResult describes the first device that was released, keyReleaseResults all.
	keyReleaseResult  = "recover.system.held_device.result"
	keyReleaseResults = "recover.system.held_device.results"
)

// ReleaseRecoverer is the recoverer heldDeviceRecover.
//
// It releases devices and file systems that mount namespaces still mount though the host does not. It unmounts every copy in the
// namespace of its holder, the newest first, and then detaches the device if that is allowed. The judge of
// internal/faults/device finds such a device, and proves that every mount is a copy of one of the kubelet's; parameters
// narrow that. It ends no process and forces nothing: a device in use stays, and its users are named. It rests on
// umount2(2) and on the drivers' own means to detach.
type ReleaseRecoverer struct {
	Inspector *device.Inspector
}

// Name is heldDeviceRecover.
func (*ReleaseRecoverer) Name() string { return "heldDeviceRecover" }

// Parameters are those that it reads.
func (*ReleaseRecoverer) Parameters() []string {
	return []string{device.ParamDevice, device.ParamPersistentVolume, device.ParamMessage, paramReleaseDetach}
}

// maxDevices bounds how many devices one plan releases: each is looked at closely, and that takes time.
const maxDevices = 16

// Plan looks again, and plans an unmount for each copy of each device that can be released, then its detach.
func (h *ReleaseRecoverer) Plan(ctx context.Context, r processor.Request) (repair.Part, error) {
	options, err := h.readOptions(ctx, r.Values)
	if err != nil {
		return repair.Part{}, err
	}
	selection, elsewhere, err := selectionOf(ctx, h.Inspector, r)
	if err != nil || elsewhere != "" {
		return repair.Part{NotApplicable: elsewhere}, err
	}
	choice, err := h.Inspector.Select(ctx, selection)
	if errors.Is(err, device.ErrParameter) {
		return repair.Part{}, processor.Stalled(err)
	}
	if err != nil {
		return repair.Part{}, err
	}
	plan, state, refused := repair.Part{}, releaseState{}, choice.Others
	var copies []device.HolderInfo
	for _, c := range choice.Abandoned {
		if len(state.Devices) == maxDevices {
			state.More = true
			break
		}
		usage, err := h.inspectWithProcesses(ctx, c)
		switch {
		case err != nil:
			return repair.Part{}, err
		case usage == nil: // it has gone meanwhile
		case !usage.Removable:
			refused = append(refused, fmt.Sprintf("%s is left alone: %s", usage.Subject(), usage.Why))
		default:
			detached := options.planRelease(ctx, h.Inspector, usage, &plan)
			state.Devices = append(state.Devices, releasedDeviceOf(usage, detached))
			copies = append(copies, usage.Copies()...)
		}
	}
	if len(plan.Actions) == 0 {
		return repair.Part{NotApplicable: joinReasons("nothing is released: ", refused, noneAbandoned(selection))}, nil
	}
	if state.Others, err = h.Inspector.ListOtherMounts(ctx, copies); err != nil {
		return repair.Part{}, err
	}
	err = plan.SaveState(state)
	return plan, err
}

// inspectWithProcesses looks at a device that may be released for whatever uses its mounts. One that is left over has been looked at so.
func (h *ReleaseRecoverer) inspectWithProcesses(ctx context.Context, c *device.Usage) (*device.Usage, error) {
	if !c.Removable || c.Left != nil {
		return c, nil
	}
	closer, err := h.Inspector.InspectWithProcesses(ctx, c.Device)
	if device.IsGone(err) {
		return nil, nil
	}
	if err == nil {
		closer.PodReason = c.PodReason
	}
	return closer, err
}

// planRelease plans for one device, and says whether that is to be detached.
func (o releaseOptions) planRelease(ctx context.Context, i *device.Inspector, usage *device.Usage, plan *repair.Part) (detached bool) {
	findings := usage.Findings()
	var held []fault.Key
	for _, f := range findings {
		held = append(held, f.Key())
	}
	for _, copied := range usage.Copies() {
		at, served := copied.RecordedMount, held
		if i := slices.IndexFunc(findings, func(f fault.Finding) bool { return f.Mount == copied.RecordedMount }); i >= 0 {
			served = held[i : i+1]
		}
		plan.Actions = append(plan.Actions, fault.Action{
			Kind: fault.Unmount, For: served, Target: at.Point, Mount: &at,
			Safety: fmt.Sprintf("in the mount namespace of %s: %s", copied.Sentence(), copied.Why), Loss: "nothing", Lossless: true,
		})
	}
	why, reason := o.detachReason(i, usage.Device), ""
	if o.detach == "true" && detachable(usage.Device) && !usage.Device.Known() {
		reason = "it is not detached: another device could take its name unnoticed, as the kernel numbers disks only from Linux " + sys.HasDiskSequence.Kernel
	}
	if why != "" {
		if err := checkNoBlockVolume(ctx, i, usage.Device); err != nil {
			why, reason = "", "it is not detached: "+err.Error()
		}
	}
	if reason != "" {
		for n := range findings {
			findings[n].Evidence = append(findings[n].Evidence, reason)
		}
	}
	plan.Findings = append(plan.Findings, findings...)
	if why != "" {
		ref := device.Reference(usage.Device)
		a := fault.Action{
			Kind: fault.Detach, For: held, Target: device.DescribeTarget(usage.Device), Device: &ref,
			Safety: why + "; it is not forced: the kernel refuses while anybody has the device open",
			Loss:   "nothing: the data behind the device is not touched", Lossless: usage.Device.Kind != blockdev.Zram,
		}
		if !a.Lossless {
			a.Loss = "the data in the device's memory"
		}
		plan.Actions = append(plan.Actions, a)
	}
	return why != ""
}
