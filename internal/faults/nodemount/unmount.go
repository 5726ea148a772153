// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package nodemount

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
)

// ErrNotRemovable is returned for a mount that is not, or no longer, one that may be removed, with the reason.
var ErrNotRemovable = errors.New("mount is left alone")

// Job is the work of Unmount in a process that can be lost. Main programs, and tests, hand it to subprocess.Main.
var Job = faults.OrderJob("node-unmount", unmountCauses, runUnmount)

// unmountDeadline is how long one unmount may take.
const unmountDeadline = 10 * time.Second

// unmountOrder is one unmount, as the process that does it reads it.
type unmountOrder struct {
	// Kubelet is the kubelet's mount namespace: the process enters no other.
	Kubelet mountns.Namespace
	Mount   mount.ID
	// PodsDir is set for a staging path: nothing below it may be of the same file system. Else the mount equals the one beneath it.
	PodsDir string
}

// unmountCauses are the errors that callers of Unmount distinguish.
var unmountCauses = []error{mount.ErrNotMounted, mount.ErrBusy, mount.ErrChanged, ErrNotRemovable, sys.EINVAL}

// Unmount removes one mount, if it is the very mount that was written down: one of a stack that equals the one beneath it at that moment, or one
// at a staging path that is still proven to be left over. It is never forced: mount.ErrBusy if a process uses it or another mount lies on it. mount.ErrNotMounted: it is gone already.
func (i *Inspector) Unmount(ctx context.Context, want fault.Mount) error {
	id, err := faults.MountID(want)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotRemovable, err)
	}
	node, err := i.Kubelet.Node(ctx)
	if err != nil {
		return err
	}
	ns, err := node.Namespace()
	if err == nil && ns.PID == 0 {
		ns.PID, err = sys.OwnPID()
	}
	if err == nil {
		ns, err = ns.Owned()
	}
	switch {
	case err != nil:
		return fmt.Errorf("unmount %q: %w", want.Point, err)
	case ns.Inode != want.Namespace:
		return fmt.Errorf("%w: the kubelet is in another mount namespace by now", ErrNotRemovable)
	}
	order := unmountOrder{Kubelet: ns, Mount: id}
	if _, staging := node.ParseStaging(want.Point); staging {
		var still bool
		if still, err = i.staysLeftOver(ctx, want); err != nil {
			return err
		}
		if still {
			order.PodsDir = node.PodsDir()
		} // else it may be one of a stack
	}
	outcome, err := faults.RunJob(ctx, i.Runner, subprocess.Options{
		Job: Job.Name, Input: order, Deadline: unmountDeadline, Owner: "mounts of the node", Waits: []string{want.Device},
	}, "the process that unmounts "+want.Point)
	if err != nil {
		return fmt.Errorf("unmount %q: %w", want.Point, err)
	}
	return outcome.Err(unmountCauses)
}

// staysLeftOver reports whether a mount at a staging path may still be unmounted, by the pods and the attachments of this moment.
func (i *Inspector) staysLeftOver(ctx context.Context, want fault.Mount) (bool, error) {
	e, err := i.Look(ctx)
	if err != nil || e.Doubt != "" {
		return false, err
	}
	return slices.ContainsFunc(e.Staged, func(s Staged) bool {
		return s.Unattached && s.Top.Point == want.Point && s.Top.MountInfoID == want.MountInfoID
	}), nil
}

// runUnmount is the job.
func runUnmount(ctx context.Context, o unmountOrder) error {
	return o.Kubelet.Do(func() error {
		check := expectEqualBeneath
		if o.PodsDir != "" {
			check = func(state mount.State) error { return expectInNoPod(state, o.PodsDir) }
		}
		err := mount.Unmount(ctx, o.Mount, mount.Options{Check: check})
		if errors.Is(err, mount.ErrChanged) { // the one beneath it shows once it is gone
			mount.LocateAll(nil, []mount.ID{o.Mount}, func(_ int, st mount.State, errFind error) {
				if errFind == nil && !st.Same(o.Mount) {
					err = mount.ErrNotMounted
				}
			})
		}
		return err
	})
}

// expectInNoPod makes sure that no mount in the directory of a pod is of the same file system.
func expectInNoPod(state mount.State, podsDir string) error {
	table, err := mountns.Table(0)
	if err != nil {
		return err
	}
	for _, m := range table.Mounts() {
		if m.Major == state.Major && m.Minor == state.Minor && mountinfo.Within(podsDir, m.Point) {
			return fmt.Errorf("%w: %q in the directory of a pod is of the same file system", ErrNotRemovable, m.Point)
		}
	}
	return nil
}

// expectEqualBeneath makes sure that the mount equals the one beneath it, so that nothing changes for those who look up its place.
func expectEqualBeneath(state mount.State) error {
	below, err := mount.Beneath(state.ID)
	switch {
	case errors.Is(err, mount.ErrNotMounted):
		return fmt.Errorf("%w: it is the last one at its place", ErrNotRemovable)
	case err != nil:
		return err
	case state.Deleted:
		return fmt.Errorf("%w: its directory was deleted", ErrNotRemovable)
	case below.Major != state.Major || below.Minor != state.Minor || below.Root != state.Root || below.Attr != state.Attr ||
		(below.Shared == 0) != (state.Shared == 0) || below.Master != state.Master:
		return fmt.Errorf("%w: it differs from the mount beneath it", ErrNotRemovable)
	case below.Shared == 0:
		return nil
	}
	table, err := mountns.Table(0)
	if err == nil && spreads(below.Shared, peerGroups(table)) {
		err = fmt.Errorf("%w: the unmount would spread to the other mounts of its peer group", ErrNotRemovable)
	}
	return err
}
