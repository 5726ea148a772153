// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/test/lock"
	"kubediag.org/kubediag/test/reap"
)

// folders is where clusters are. It is short because a Unix socket's path has 107 bytes at most, and fixed because
// Sweep must find what others left.
const folders = "/tmp"

const prefix = "kdceph-"

// conf is the name of the configuration in the folder, and confEnv what its path is handed to Ceph's programs with.
const (
	conf    = "ceph.conf"
	confEnv = "CEPH_CONF="
)

func newCluster() (*Cluster, error) {
	dir, held, err := lock.MakeFolder(folders, prefix)
	if err != nil {
		return nil, fmt.Errorf("make cluster of ceph: %w", err)
	}
	return &Cluster{dir: dir, lock: held}, nil
}

// Sweep removes the folders of clusters whose owner is gone. Their daemons went with it; what these had started is
// killed. It leaves living clusters, and other users', alone. It names on standard error what it cannot remove, and returns no error
// for it.
func Sweep() error {
	all, err := filepath.Glob(filepath.Join(folders, prefix+"*"))
	if err != nil {
		return fmt.Errorf("list folders of ceph: %w", err)
	}
	var dirs []string
	for _, dir := range all {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && int(st.Uid) == os.Geteuid() {
			dirs = append(dirs, dir)
		}
	}
	lock.SweepFolders(dirs, tearDown)
	return nil
}

// tearDown kills the cluster's processes and removes its folder, even if one cannot be killed: then this sweep names it, and no
// later one.
func tearDown(dir string) error { return errors.Join(killAll(dir), remove(dir)) }

// killAll kills the cluster's processes.
func killAll(dir string) error {
	return reap.All(dir, func(pid int) bool { return belongs(pid, dir) })
}

// belongs reports whether a process has the cluster's environment. All threads are looked at, since the first of them can be
// gone while another still waits for a disk.
func belongs(pid int, dir string) bool {
	return slices.ContainsFunc(reap.Threads(pid), func(thread string) bool {
		text, _ := os.ReadFile(filepath.Join(thread, "environ")) // it may have ended
		return slices.Contains(strings.Split(string(text), "\x00"), confEnv+filepath.Join(dir, conf))
	})
}

// remove removes a cluster's folder, once nothing is mounted below it, since a mount could lead to files of any user.
func remove(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read mount table: %w", err)
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %q: %w", m.Mountpoint, err)
		}
	}
	return os.RemoveAll(dir)
}
