// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"slices"

	"golang.org/x/sys/unix"
)

// pseudoFileSystems are the file systems whose regular files are functions of the kernel: opening or reading one may
// wait, consume its content, or do more.
var pseudoFileSystems = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC,
	unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.BPF_FS_MAGIC, unix.EFIVARFS_MAGIC, unix.PSTOREFS_MAGIC,
	unix.SELINUX_MAGIC, unix.BINFMTFS_MAGIC, unix.NSFS_MAGIC,
}

// IsPseudoFS reports whether f lies on a file system that keeps no data. It waits
// for that file system.
func (f *FD) IsPseudoFS() (bool, error) {
	st, err := f.statfs()
	return slices.Contains(pseudoFileSystems, int64(st.Type)), err
}
