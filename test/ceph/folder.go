// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

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

// newCluster makes a cluster's folder and takes the lock in it, which says that the cluster has an owner. The lock is
// made under another name first, so that no process ever sees it free.
func newCluster() (*Cluster, error) {
	dir, err := os.MkdirTemp(folders, prefix)
	if err != nil {
		return nil, fmt.Errorf("make folder of ceph: %w", err)
	}
	held, err := lock.Try(filepath.Join(dir, "lock.new"))
	if err == nil {
		err = os.Rename(held.Name(), filepath.Join(dir, "lock"))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock folder of ceph: %w", err), os.RemoveAll(dir))
	}
	return &Cluster{dir: dir, lock: held}, nil
}

// Sweep removes the folders of clusters whose owner is gone. Their daemons went with it; what these had started is
// killed. It leaves living clusters, and other users', alone.
func Sweep() error {
	dirs, err := filepath.Glob(filepath.Join(folders, prefix+"*"))
	if err != nil {
		return fmt.Errorf("list folders of ceph: %w", err)
	}
	var errs []error
	for _, dir := range dirs {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && int(st.Uid) == os.Geteuid() {
			errs = append(errs, sweep(dir))
		}
	}
	return errors.Join(errs...)
}

func sweep(dir string) error {
	path := filepath.Join(dir, "lock")
	take := lock.TryExisting // a new lock would be in the way of a process that removes the folder just now
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		st, err := os.Lstat(dir)
		if err != nil || time.Since(st.ModTime()) < time.Minute {
			return nil // gone already, or just being made
		}
		take = lock.Try // its owner was killed before it made one
	}
	held, err := take(path)
	if errors.Is(err, lock.ErrHeld) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer held.Close()
	return errors.Join(killAll(dir), remove(dir)) // who cannot be killed is to be told of once, not by every start from now on
}

// killAll kills the cluster's processes.
func killAll(dir string) error {
	return reap.All(maxEnd, func() ([]int, error) { return killEach(dir) })
}

// killEach kills the processes that have the cluster's environment, and gives their IDs. Each is held by a descriptor from
// before it is looked at, so that no other is hit that got its ID. All threads are looked at, since the first of them can
// be gone while another still waits for a disk.
func killEach(dir string) ([]int, error) {
	environments, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/environ")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, path := range environments {
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		text, _ := os.ReadFile(path) // it may have ended
		if slices.Contains(strings.Split(string(text), "\x00"), confEnv+filepath.Join(dir, conf)) {
			pids = append(pids, pid)
			_ = p.Kill()
		}
		_ = p.Release() // gives the descriptor back; there is nothing that could fail
	}
	return slices.Compact(pids), nil
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
