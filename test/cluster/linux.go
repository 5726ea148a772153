// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// detach keeps a terminal's signals from the command: who started a cluster ends it, in order.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
}

// unmount detaches the topmost mount at path from this mount namespace, busy or not.
func unmount(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %q: %w", path, err)
	}
	return nil
}

// ownedByUs says whether path itself belongs to the user that runs this process.
func ownedByUs(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && int(st.Uid) == os.Geteuid()
}
