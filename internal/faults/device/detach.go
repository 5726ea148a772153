// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
)

// ErrNoTarget is returned for an action that names no device, and a mount that is written down as none is.
var ErrNoTarget = errors.New("no device is named")

// IsGone reports whether err only means that a device is gone, or another by now.
func IsGone(err error) bool {
	return errors.Is(err, blockdev.ErrNotFound) || errors.Is(err, blockdev.ErrChanged)
}

// Reference writes down a device.
func Reference(d blockdev.Device) fault.Device {
	return fault.Device{Name: d.Name, Sequence: d.Sequence, Image: d.Image}
}

// DescribeTarget names a device for people, with what is behind it.
func DescribeTarget(d blockdev.Device) string {
	if d.Sequence == 0 && d.Image != "" {
		return fmt.Sprintf("%s (image %s)", d.Node(), d.Image)
	}
	return fmt.Sprintf("%s (diskseq %d)", d.Node(), d.Sequence)
}

// resolve finds the device that was written down. there: it is still what it was, as far as that can be told.
func (i *Inspector) resolve(want *fault.Device) (d blockdev.Device, there bool, err error) {
	if want == nil || want.Name == "" || strings.ContainsAny(want.Name, "/:") {
		return d, false, ErrNoTarget
	}
	d, err = i.Finder.Sys.Resolve(want.Name)
	if IsGone(err) {
		return d, false, nil
	}
	return d, err == nil && (!want.Known() || Reference(d) == *want), err
}

// Detach detaches the device that was written down, by its own means, if nothing at all holds it. gone: it had gone
// already. ErrNotRemovable: it is held, or may be another by now, which cannot be ruled out. blockdev.ErrBusy: a
// process has just opened it.
func (i *Inspector) Detach(ctx context.Context, want *fault.Device, allowed func(blockdev.Device) error) (gone bool, err error) {
	device, there, err := i.resolve(want)
	if err != nil || !there {
		return err == nil, err
	}
	if !want.Known() {
		return false, fmt.Errorf("%w: %s may be another device by now: this kernel does not number what is behind a device, nor is it "+
			"known otherwise", ErrNotRemovable, device.Node())
	}
	if err := allowed(device); err != nil {
		return false, err
	}
	usage, err := i.InspectWithProcesses(ctx, device)
	for look := 1; err == nil && look < maxDetachLooks && usage.onlyOpened(); look++ {
		time.Sleep(detachLookPause)
		usage, err = i.InspectWithProcesses(ctx, device)
	}
	if err == nil && !usage.Unused() {
		err = fmt.Errorf("%w: %s", ErrNotRemovable, usage.Describe())
	}
	if err == nil {
		err = i.Finder.Sys.Detach(ctx, device)
	}
	if IsGone(err) || errors.Is(err, blockdev.ErrNotAttached) {
		return true, nil
	}
	return false, err
}

// Another kubediag opens a device for a moment to see whether it is free. So a device that processes have open, and nothing else holds, is
// looked at again.
const (
	maxDetachLooks  = 3
	detachLookPause = 100 * time.Millisecond
)

// onlyOpened reports whether processes have the node of the device open, and nothing else is known to hold it.
func (c *Usage) onlyOpened() bool {
	return len(c.HolderInfos) > 0 && len(c.FileSystems) == 0 &&
		!slices.ContainsFunc(c.HolderInfos, func(h HolderInfo) bool { return h.Kind != devholder.RawOpen })
}

// Unused reports whether nothing holds the device, and nothing may hold it unseen.
func (c *Usage) Unused() bool {
	return !c.Busy && c.Untested == nil && len(c.HolderInfos) == 0 && len(c.Hidden) == 0 && len(c.FileSystems) == 0
}

// NodeUsed says where the kubelet's namespace has the node of the device bound to a file, as for a volume that a pod
// gets as a device; empty: nowhere.
func (i *Inspector) NodeUsed(ctx context.Context, d blockdev.Device) (string, error) {
	n, err := i.Kubelet.Node(ctx)
	if err != nil {
		return "", err
	}
	table, err := n.Mounts(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range table.Mounts() {
		if m.FSType == "devtmpfs" && m.Root == strings.TrimPrefix(d.Node(), "/dev") {
			return m.Point, nil
		}
	}
	return "", nil
}

// There reports whether the device that was written down is still there.
func (i *Inspector) There(want *fault.Device) (bool, error) {
	_, there, err := i.resolve(want)
	return there, err
}
