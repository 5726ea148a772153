// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// Open implements repair.Family. Each action looks for itself.
func (h *ReleaseRecoverer) Open() repair.Apply { return h.Apply }

// Apply does one action of a plan. It succeeds if that is done already, and refuses if the target has changed since the
// plan.
func (h *ReleaseRecoverer) Apply(ctx context.Context, r processor.Request, action fault.Action) (fault.Applied, error) {
	switch action.Kind {
	case fault.Unmount:
		if action.Mount == nil {
			return fault.Applied{}, processor.Stalled(errors.New("apply action: no mount is named"))
		}
		err := h.Inspector.Unmount(ctx, *action.Mount)
		switch {
		case err == nil:
			return fault.Applied{Message: "unmounted"}, nil
		case errors.Is(err, mount.ErrNotMounted), errors.Is(err, mountns.ErrGone):
			return fault.AlreadySo("was gone already"), nil
		case errors.Is(err, mount.ErrBusy):
			return fault.Applied{}, processor.Stalled(fmt.Errorf("%w: %s", err, h.describeUsers(ctx, action.Mount.Device)))
		case errors.Is(err, device.ErrNotRemovable), errors.Is(err, device.ErrNoTarget), errors.Is(err, mount.ErrChanged), errors.Is(err, sys.EINVAL):
			return fault.Applied{}, processor.Stalled(fmt.Errorf("nothing was touched: %w", err))
		}
		return fault.Applied{}, err
	case fault.Detach:
		o, err := h.readOptions(ctx, r.Values)
		if err != nil {
			return fault.Applied{}, err
		}
		allowed := func(d blockdev.Device) error {
			if o.detachReason(h.Inspector, d) == "" {
				return fmt.Errorf("%w: device %s is left to its driver", device.ErrNotRemovable, d.Node())
			}
			if err := h.Inspector.CheckLoop(ctx, d); err != nil {
				return err
			}
			return checkNoBlockVolume(ctx, h.Inspector, d)
		}
		gone, err := h.Inspector.Detach(ctx, action.Device, allowed)
		return detachOutcome("detached", gone, err)
	}
	return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: kind %q is not known", action.Kind))
}

// describeUsers says who uses a device, as far as that can be found out.
func (h *ReleaseRecoverer) describeUsers(ctx context.Context, number string) string {
	d, err := h.Inspector.Finder.Sys.Resolve(number)
	if err != nil {
		return "its users are unknown: " + err.Error()
	}
	c, err := h.Inspector.InspectWithProcesses(ctx, d)
	if err != nil {
		return "its users are unknown: " + err.Error()
	}
	return c.Describe()
}

// detachOutcome says how a detach went. done is the word for one that was done now.
func detachOutcome(done string, gone bool, err error) (fault.Applied, error) {
	switch {
	case gone:
		return fault.AlreadySo("was gone already"), nil
	case err == nil:
		return fault.Applied{Message: done}, nil
	case errors.Is(err, device.ErrNotRemovable), errors.Is(err, device.ErrNoTarget), errors.Is(err, blockdev.ErrNoMeans),
		errors.Is(err, blockdev.ErrBusy):
		return fault.Applied{}, processor.Stalled(err)
	}
	return fault.Applied{}, err
}

// checkNoBlockVolume makes sure that no pod has a device as a raw block volume: such a volume needs no mount.
func checkNoBlockVolume(ctx context.Context, i *device.Inspector, d blockdev.Device) error {
	point, err := i.NodeUsed(ctx, d)
	if err == nil && point != "" {
		err = fmt.Errorf("%w: the kubelet has device %s at %q as a raw block volume", device.ErrNotRemovable, d.Node(), point)
	}
	return err
}
