// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

// ErrNotRemovable is returned for a mount that is not to be removed, with why.
var ErrNotRemovable = errors.New("not removable")

// Unmount removes one copy in the namespace of its holder, if it is the very mount that was written down. At that
// moment the judge must still say that it may go. It is never forced: mount.ErrBusy if a process uses it.
// mount.ErrNotMounted: it is gone already. ErrNotRemovable: it is not to go. A child process that can be lost does
// every step that may wait for a file system (subprocess.ErrDeadline, subprocess.ErrTooMany). The holder chooses the
// way to the mount, and the last mount of a file system takes that with it.
func (i *Inspector) Unmount(ctx context.Context, want fault.Mount) error {
	holder, err := i.findRemovable(ctx, want)
	if err != nil {
		return err
	}
	id, err := faults.MountID(holder.RecordedMount)
	if err != nil {
		return err
	}
	inspection, err := i.newInspection(ctx)
	if err != nil {
		return err
	}
	r := unmountOrder{Host: inspection.host, Layout: layoutOf(inspection.node), Holder: holder.Mount.Namespace, Mount: id}
	owner := cmp.Or(holder.In.Pod.UID, "mount namespace "+holder.Mount.Namespace.String())
	outcome, err := faults.RunJob(ctx, i.Runner, subprocess.Options{
		Job: Job.Name, Input: r, Deadline: unmountDeadline, Owner: owner,
		Waits: []string{"device " + blockdev.Number{Major: r.Mount.Major, Minor: r.Mount.Minor}.String()},
	}, "the process that unmounts "+r.Mount.Point)
	switch {
	case errors.Is(err, subprocess.ErrDeadline):
		return fmt.Errorf("unmount %q in mount namespace %s, which may still be done: %w", r.Mount.Point, r.Holder, err)
	case err != nil:
		return fmt.Errorf("unmount %q in mount namespace %s: %w", r.Mount.Point, r.Holder, err)
	}
	return outcome.Err(unmountCauses)
}

// findRemovable looks for the mount among those that may go.
func (i *Inspector) findRemovable(ctx context.Context, want fault.Mount) (HolderInfo, error) {
	cases, _, err := i.FindAbandoned(ctx)
	if err != nil {
		return HolderInfo{}, err
	}
	for _, usage := range cases {
		for _, h := range usage.HolderInfos {
			switch {
			case !h.RecordedMount.Same(want):
			case !usage.Removable:
				return h, fmt.Errorf("%w: device %q: %s", ErrNotRemovable, usage.Device.Name, usage.Why)
			default:
				return h, nil
			}
		}
	}
	id, err := faults.MountID(want)
	if err != nil {
		return HolderInfo{}, fmt.Errorf("%w: %w", ErrNoTarget, err)
	}
	stands := false // wherever it may be
	survey, err := mountns.EachMount(func(b *mountns.MountBrief) bool { return b.Major == id.Major && b.Minor == id.Minor }, func(m *mountns.Mount) {
		stands = stands || faults.MountOf(*m).Same(want)
	})
	switch {
	case err == nil && stands:
		err = fmt.Errorf("%w: its file system is no longer left behind: the kubelet's own mount namespace has it mounted", ErrNotRemovable)
	case err == nil:
		err = cmp.Or(survey.CheckComplete(), mount.ErrNotMounted)
	}
	return HolderInfo{}, err
}
