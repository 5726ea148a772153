// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/linux/bounded"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Detach removes the backing of a device, by its own means, never by force, and verifies that it is gone: it unmaps a
// krbd device, unbinds a loop device, and resets a zram device, which loses the data in its memory. It refuses
// partitions and every other kind (ErrNoMeans), and a device that has changed since it was resolved (ErrChanged). A
// device in use, if only by a process that has its node open, gives ErrBusy. ErrNotAttached and ErrNotFound: it is gone
// already. It waits for the kernel as long as ctx allows; after ErrNoAnswer the kernel may still do it later.
func (s Sys) Detach(ctx context.Context, d Device) error {
	detach := map[Kind]func(context.Context, Device) error{KRBD: s.detachKRBD, Loop: s.detachLoop, Zram: s.detachZram}[d.Kind]
	var err error
	switch {
	case d.Parent != "":
		err = fmt.Errorf("%w: partition of %q", ErrNoMeans, d.Parent)
	case detach == nil:
		err = fmt.Errorf("%w: kind %q", ErrNoMeans, d.Kind)
	case ctx.Err() != nil:
		err = ctx.Err()
	default:
		_, err = bounded.Do(ctx, &deviceCalls, bounded.Call{Key: d.callKey()}, func() (struct{}, error) { return struct{}{}, detach(ctx, d) })
	}
	if err != nil {
		return fmt.Errorf("detach %q: %w", d.Name, err)
	}
	return nil
}

// checkUnchanged fails if the device has changed since it was resolved.
func (s Sys) checkUnchanged(d Device) error {
	now, err := s.newSysfs().readDevice(d.Name)
	if err == nil && now != d {
		err = ErrChanged
	}
	return err
}

// checkFree claims the device and lets it go again: krbd and zram refuse to detach a device that any process has open.
func (s Sys) checkFree(d Device) error {
	fd, err := s.openClaimed(d)
	fd.Close()
	return err
}

// writeOrder writes to a driver's file.
func (s Sys) writeOrder(ctx context.Context, path, text string) error {
	err := calls.From(ctx).Did("write", path+" "+text, retryWhileBusy(func() error { return s.writeFile(path, text) }))
	switch {
	case errors.Is(err, sys.EBUSY):
		return openElsewhere(err)
	case err != nil:
		return notFoundError(err)
	}
	return nil
}

func openElsewhere(err error) error {
	return fmt.Errorf("%w: another process has it open: %w", ErrBusy, err)
}

// verifyTimeout is how long a device may take to go after the kernel said that it
// does.
const verifyTimeout = 2 * time.Second

// awaitGone waits until the device has gone.
func awaitGone(ctx context.Context, goneNow func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !goneNow() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errStillAttached
		}
	}
	return nil
}

// detachLoop claims the device until it is done, so that no other process gets it
// between the test and the act.
func (s Sys) detachLoop(ctx context.Context, device Device) error {
	fd, err := s.openClaimed(device)
	if err != nil {
		return err
	}
	defer fd.Close()
	if !s.newSysfs().hasAttribute(device.Name, "loop/backing_file") {
		return ErrNotAttached
	}
	if err := s.checkUnchanged(device); err != nil {
		return err
	}
	err = calls.From(ctx).Did("ioctl", device.Node()+" LOOP_CLR_FD", retryWhileBusy(sys.LoopFD{FD: fd}.LoopClear))
	switch {
	case errors.Is(err, sys.ENXIO):
		return ErrNotAttached
	case errors.Is(err, sys.EBUSY):
		return openElsewhere(err)
	case err != nil:
		return err
	}
	fd.Close()
	return awaitGone(ctx, func() bool {
		return !s.newSysfs().hasAttribute(device.Name, "loop/backing_file") || s.isReplaced(device)
	})
}

// isReplaced reports whether something else is behind the device by now.
func (s Sys) isReplaced(d Device) bool {
	now, err := s.newSysfs().readDevice(d.Name)
	return err == nil && d.Known() && now.Known() && (now.Sequence != d.Sequence || now.Image != d.Image)
}

func (s Sys) detachZram(ctx context.Context, device Device) error {
	empty := func() bool {
		state, err := s.newSysfs().readAttribute(device.Name, "initstate")
		return errors.Is(notFoundError(err), ErrNotFound) || state == "0"
	}
	if err := s.checkUnchanged(device); err != nil {
		return err
	}
	if empty() {
		return ErrNotAttached
	}
	if err := s.checkFree(device); err != nil {
		return err
	}
	if err := s.writeOrder(ctx, s.newSysfs().attributePath(device.Name, "reset"), "1"); err != nil {
		return err
	}
	return awaitGone(ctx, empty)
}

// detachKRBD asks for the device by the number that krbd knows it by. If krbd has a
// file for devices of one major, it refuses the other.
func (s Sys) detachKRBD(ctx context.Context, device Device) error {
	if err := s.checkUnchanged(device); err != nil {
		return err
	}
	id := s.newSysfs().imageID(device.Name, device.Number.String())
	if id == "" {
		return ErrNotFound
	}
	if err := s.checkFree(device); err != nil {
		return err
	}
	remove := s.newSysfs().pathAt("sys/bus/rbd/remove_single_major")
	if !pathExists(remove) {
		remove = s.newSysfs().pathAt("sys/bus/rbd/remove")
	}
	if err := s.writeOrder(ctx, remove, id); err != nil {
		return err
	}
	return awaitGone(ctx, func() bool {
		return s.newSysfs().imageID(device.Name, device.Number.String()) == "" || s.isReplaced(device)
	})
}
