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

// Detach takes away what is behind a device, by its own means, never by force,
// and verifies that it is gone: it unmaps a krbd device, unbinds a loop device,
// and resets a zram device, which loses what is in its memory. It refuses
// partitions and every other kind (ErrNoMeans), a device in use, if only by a
// process that has its node open (ErrBusy), and one that is no longer the one
// that was resolved (ErrChanged). ErrNotAttached and ErrNotFound: it is gone
// already. It waits for the kernel as long as ctx allows; ErrNoAnswer says that
// the kernel may still do it later.
func (s Sys) Detach(ctx context.Context, d Device) error {
	r := s.detacher()
	detach := map[Kind]func(context.Context, Device) error{KRBD: r.detachKRBD, Loop: r.detachLoop, Zram: r.detachZram}[d.Kind]
	if err := r.detachBy(ctx, d, detach); err != nil {
		return fmt.Errorf("detach %q: %w", d.Name, err)
	}
	return nil
}

// detacher detaches devices, each kind by its own means.
type detacher struct{ Sys }

func (r detacher) detachBy(ctx context.Context, d Device, detach func(context.Context, Device) error) error {
	if d.Parent != "" {
		return fmt.Errorf("%w: partition of %q", ErrNoMeans, d.Parent)
	}
	if detach == nil {
		return fmt.Errorf("%w: kind %q", ErrNoMeans, d.Kind)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := bounded.Do(ctx, &devices, bounded.Call{Key: d.key()}, func() (struct{}, error) { return struct{}{}, detach(ctx, d) })
	return err
}

// unchanged fails where the device is no longer the one that was resolved.
func (r detacher) unchanged(d Device) error {
	now, err := r.files().device(d.Name)
	if err == nil && now != d {
		err = ErrChanged
	}
	return err
}

// free claims the device and lets it go again: krbd and zram refuse to detach
// what any process has open.
func (s Sys) free(d Device) error {
	fd, err := s.claim(d)
	fd.Close()
	return err
}

// order writes to a driver's file.
func (r detacher) order(ctx context.Context, path, text string) error {
	err := calls.From(ctx).Did("write", path+" "+text, insist(detachTries, detachPause, func() error { return r.write(path, text) }))
	switch {
	case errors.Is(err, sys.EBUSY):
		return openElsewhere(err)
	case err != nil:
		return notFound(err)
	}
	return nil
}

func openElsewhere(err error) error {
	return fmt.Errorf("%w: somebody has it open: %w", ErrBusy, err)
}

// verifyTime is how long a device may take to go after the kernel said that it
// does.
const verifyTime = 2 * time.Second

// verify waits until the device has gone.
func verify(ctx context.Context, goneNow func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, verifyTime)
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
func (r detacher) detachLoop(ctx context.Context, d Device) error {
	fd, err := r.claim(d)
	if err != nil {
		return err
	}
	defer fd.Close()
	if !r.files().has(d.Name, "loop/backing_file") {
		return ErrNotAttached
	}
	if err := r.unchanged(d); err != nil {
		return err
	}
	err = calls.From(ctx).Did("ioctl", d.Node()+" LOOP_CLR_FD", insist(detachTries, detachPause, fd.LoopClear))
	switch {
	case errors.Is(err, sys.ENXIO):
		return ErrNotAttached
	case errors.Is(err, sys.EBUSY):
		return openElsewhere(err)
	case err != nil:
		return err
	}
	fd.Close()
	return verify(ctx, func() bool { return !r.files().has(d.Name, "loop/backing_file") || r.replaced(d) })
}

// replaced reports whether something else is behind the device by now.
func (r detacher) replaced(d Device) bool {
	now, err := r.files().device(d.Name)
	return err == nil && d.Known() && now.Known() && (now.Sequence != d.Sequence || now.Image != d.Image)
}

func (r detacher) detachZram(ctx context.Context, d Device) error {
	empty := func() bool {
		state, err := r.files().read(d.Name, "initstate")
		return errors.Is(notFound(err), ErrNotFound) || state == "0"
	}
	if err := r.unchanged(d); err != nil {
		return err
	}
	if empty() {
		return ErrNotAttached
	}
	if err := r.free(d); err != nil {
		return err
	}
	if err := r.order(ctx, r.files().attr(d.Name, "reset"), "1"); err != nil {
		return err
	}
	return verify(ctx, empty)
}

// detachKRBD asks for the device by the number that krbd knows it by. If krbd has a
// file for devices of one major, it refuses the other.
func (r detacher) detachKRBD(ctx context.Context, d Device) error {
	if err := r.unchanged(d); err != nil {
		return err
	}
	id := r.files().imageID(d.Name, d.Number.String())
	if id == "" {
		return ErrNotFound
	}
	if err := r.free(d); err != nil {
		return err
	}
	remove := r.files().at("sys/bus/rbd/remove_single_major")
	if !exists(remove) {
		remove = r.files().at("sys/bus/rbd/remove")
	}
	if err := r.order(ctx, remove, id); err != nil {
		return err
	}
	return verify(ctx, func() bool {
		return r.files().imageID(d.Name, d.Number.String()) == "" || r.replaced(d)
	})
}
