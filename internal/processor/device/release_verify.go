// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// releaseState has the facts of the time of the plan that Verify needs.
type releaseState struct {
	Devices []releasedDevice     `json:"devices"`
	Others  []device.OtherMounts `json:"others,omitempty"`
	// More is whether there may be more devices to release than one plan does.
	More bool `json:"more,omitempty"`
}

// releasedDevice is a device of the plan.
type releasedDevice struct {
	fault.Device
	Node string `json:"node"`
	// Title is Node in words. It is empty in a plan of an earlier version.
	Title  string `json:"title,omitempty"`
	Detach bool   `json:"detach,omitempty"`
	// Mounts are the copies.
	Mounts []fault.Mount `json:"mounts"`
	// Holders are who had them, in words.
	Holders []string `json:"holders"`
}

func releasedDeviceOf(c *device.Usage, detach bool) releasedDevice {
	d := releasedDevice{Device: device.Reference(c.Device), Node: c.Device.Node(), Title: c.Name(), Detach: detach}
	for _, h := range c.Copies() {
		d.Mounts = append(d.Mounts, h.RecordedMount)
		d.Holders = append(d.Holders, h.Sentence())
	}
	return d
}

// Verify proves that every copy is gone, the device free or gone, and the rest of the holder's mounts as it was.
func (h *ReleaseRecoverer) Verify(ctx context.Context, _ processor.Request, plan repair.Part) (processor.Result, error) {
	var m releaseState
	if err := plan.LoadState(&m); err != nil {
		return processor.Result{}, err
	}
	if len(m.Devices) == 0 {
		return processor.Result{}, processor.Stalled(errors.New("decode notes of plan: no device is noted"))
	}
	lives := "every holder lives" // and nothing else has gone from where the copies were
	for _, n := range m.Others {
		missing, alive, gone, err := n.Recheck()
		switch {
		case err != nil:
			return processor.Result{}, err
		case gone || len(n.PIDs) > 0 && !alive:
			lives = fmt.Sprintf("those in mount namespace mnt:[%d] have ended since, which was not our doing", n.Namespace)
		case len(missing) > 0:
			return processor.Result{}, processor.Stalled(fmt.Errorf("verify mounts of mnt:[%d]: mounts %v were not to be touched, and are gone", n.Namespace, missing))
		}
	}
	var results []string
	for _, d := range m.Devices {
		state, err := h.verifyDevice(ctx, d)
		if err != nil {
			return processor.Result{}, err
		}
		if len(d.Mounts) == 0 {
			results = append(results, fmt.Sprintf("released %s, which was left over from a pod that is gone: it is %s", cmp.Or(d.Title, "device "+d.Node), state))
			continue
		}
		results = append(results, fmt.Sprintf("released %s: %s that were held by %s; it is %s; %s",
			cmp.Or(d.Title, "device "+d.Node), d.describeUnmounts(plan), strings.Join(slices.Compact(slices.Clone(d.Holders)), ", "), state, lives))
	}
	if m.More {
		results = append(results, fmt.Sprintf("no more than %d devices are released at once: run it again for the others", maxDevices))
	}
	values, err := processor.SentenceValues(keyReleaseResult, keyReleaseResults, results)
	return processor.Result{Values: values, Findings: processor.MarkHealed(plan.Findings, nil)}, err
}

// describeUnmounts says how many copies were unmounted, and how many had gone by themselves.
func (r releasedDevice) describeUnmounts(p repair.Part) string {
	already := 0
	for i, a := range p.Actions {
		if p.Outcome(i).Already && a.Mount != nil && slices.Contains(r.Mounts, *a.Mount) {
			already++
		}
	}
	text := fmt.Sprintf("unmounted %d copies of its mounts", len(r.Mounts)-already)
	if already > 0 {
		text += fmt.Sprintf(", and found %d gone already,", already)
	}
	return text
}

// verifyDevice says in which state a device is that has been released.
func (h *ReleaseRecoverer) verifyDevice(ctx context.Context, released releasedDevice) (state string, err error) {
	now, err := h.Inspector.Finder.Sys.Resolve(released.Name)
	if device.IsGone(err) || err == nil && device.Reference(now) != released.Device {
		return "detached", nil
	}
	if err != nil {
		return "", err
	}
	usage, err := h.Inspector.Inspect(ctx, now)
	switch {
	case device.IsGone(err) && now.Kind == blockdev.Anonymous:
		return "no more", nil
	case device.IsGone(err):
		return "detached", nil
	}
	if err != nil {
		return "", err
	}
	for _, held := range usage.HolderInfos {
		for _, gone := range released.Mounts {
			if held.RecordedMount.Same(gone) {
				return "", processor.Stalled(fmt.Errorf("verify unmount of %q: the mount is still in the mount table", gone.Point))
			}
		}
	}
	switch {
	case now.Kind == blockdev.Anonymous && !usage.HasCopies():
		return "no more", nil // the kernel has given its number to another
	case usage.Host:
		return "in use again: the kubelet's mount namespace has it mounted", nil
	case usage.Busy, usage.Untested != nil, len(usage.FileSystems) > 0:
		return "", processor.Stalled(fmt.Errorf("verify release: %s", usage.Describe()))
	case released.Detach && h.hasNoData(now):
		return "detached", nil
	case released.Detach:
		return "", processor.Stalled(fmt.Errorf("verify detach of %s: it is free, and still there", released.Node))
	}
	return "free, and left to its driver", nil
}

// hasNoData reports whether nothing is behind a device that stays when it is detached. A zram device does not show it;
// its driver was asked right after the reset.
func (h *ReleaseRecoverer) hasNoData(d blockdev.Device) bool {
	if d.Kind == blockdev.Zram {
		return true
	}
	_, err := h.Inspector.Finder.Sys.Backing(d)
	return errors.Is(err, blockdev.ErrNotAttached)
}
