// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"fmt"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

// errHealthy: the mount that was to be replaced has nothing wrong with it.
var errHealthy = errors.New("the mount is healthy by now")

// checkTarget refuses a healthy mount, and the removal of a mount that is not dead. A driver may have mounted the
// volume again since the mount was judged. Before 6.8, and if the server has disowned the root, the kernel may have given the
// new mount every number of the old one. mount.Replace holds the mount that state describes open meanwhile, if it can be
// opened, so that its number stays its own.
func (o replaceOrder) checkTarget(state mount.State) error {
	root, err := mountns.Lookup(0, state.Point)
	if errors.Is(err, sys.ESTALE) && !o.Remove {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	number, err := mountIDOf(root)
	switch {
	case err != nil:
		return err
	case number != state.UniqueID && number != uint64(state.MountInfoID):
		return fmt.Errorf("%w while it was looked at", mount.ErrChanged)
	case o.Idle:
		return nil
	case o.Answered:
		// The mount was judged by its content, which no file system is asked about. Its number is enough if the
		// kernel never uses it again, and so is the kernel's mark, which is part of its ID. Otherwise a mount of the
		// source itself may be a new one.
		if o.Target.UniqueID != 0 || state.Deleted {
			return nil
		}
		has, err := root.Stat(sys.StatIno)
		if err != nil {
			return err
		}
		if has.Major == o.Major && has.Minor == o.Minor && has.Ino == o.Inode {
			return fmt.Errorf("%w: it has what belongs there, inode %d of device %d:%d", errHealthy, has.Ino, has.Major, has.Minor)
		}
		return nil
	}
	// A dead FUSE connection refuses at once, and does so for good.
	switch answer := probe.AskRoot(root).State; {
	case o.Remove && answer != probe.Disconnected:
		return fmt.Errorf("%w: its state is %s", errHealthy, answer)
	case answer == probe.Alive:
		return fmt.Errorf("%w: it answers", errHealthy)
	}
	return nil
}
