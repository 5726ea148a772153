// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Job is what Unmount has done in a process that can be lost. Main programs, and tests, hand it to subprocess.Main.
var Job = faults.OrderJob("device-unmount", unmountCauses, func(ctx context.Context, r unmountOrder) error {
	return r.Holder.Do(func() error { return mount.Unmount(ctx, r.Mount, mount.Options{Check: r.checkState, Foreign: true}) })
})

// unmountDeadline is how long one unmount may take. The last one of a file system writes what is not written yet.
const unmountDeadline = 2 * time.Minute

// unmountOrder is one unmount, as the process that does it is told of it.
type unmountOrder struct {
	// Host is the kubelet's mount namespace, with a process in it, and Layout where its kubelet mounts volumes.
	Host   mountns.Namespace
	Layout kubeletLayout
	// Holder is the namespace of the mount: the process enters no other.
	Holder mountns.Namespace
	Mount  mount.ID
}

// unmountCauses are the errors that callers of Unmount distinguish.
var unmountCauses = []error{mount.ErrNotMounted, mountns.ErrGone, mount.ErrBusy, mount.ErrChanged, ErrNotRemovable, sys.EINVAL}

// checkState repeats what the mount tables say, from inside of the holder's namespace.
func (r unmountOrder) checkState(st mount.State) error {
	now, err := mountns.Of(r.Host.PID)
	if err == nil && !now.Same(r.Host) {
		err = fmt.Errorf("process %d is no longer in the kubelet's mount namespace: %w", r.Host.PID, mountns.ErrChanged)
	}
	if err != nil {
		return err
	}
	host, err := mountns.Table(r.Host.PID)
	if err != nil {
		return err
	}
	inside, err := mountns.Table(0)
	if err != nil {
		return err
	}
	t := mountTables{r.Layout, host, inside}
	m, ok := t.holderTable.ByID(st.MountInfoID)
	if !ok || m.Point != st.Point {
		return mount.ErrNotMounted
	}
	verdict := t.judgeByTables(m)
	if verdict.keepReason == "" && len(t.holderTable.Children(m.ID)) > 0 {
		verdict.keepReason = "another mount lies on it"
	}
	if verdict.keepReason != "" {
		return fmt.Errorf("%w: %s", ErrNotRemovable, verdict.keepReason)
	}
	return nil
}
