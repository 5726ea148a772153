// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package debian gets the programs that tests need from Debian's packages, once for all programs that ask at the same
// time. None of the packages starts a daemon: tests run their own. It is for tests alone.
package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"kubediag.org/kubediag/test/lock"
)

// CNIPlugins is where Debian puts the CNI plugins.
const CNIPlugins = "/usr/lib/cni"

// Path is the PATH of everything that tests start.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// packages names the Debian package of each program that tests need beside Kubernetes itself.
var packages = map[string]string{
	"etcd":                              "etcd-server",
	"containerd":                        "containerd",
	"ctr":                               "containerd",
	"runc":                              "runc",
	CNIPlugins + "/bridge":              "containernetworking-plugins",
	"busybox":                           "busybox-static",
	"crun":                              "crun",
	"ip":                                "iproute2",
	"mkfs.ext4":                         "e2fsprogs",
	"mount":                             "mount",
	"losetup":                           "mount",
	"/usr/bin/prometheus-node-exporter": "prometheus-node-exporter",
	"prometheus":                        "prometheus",
	"promtool":                          "prometheus",
	"prometheus-alertmanager":           "prometheus-alertmanager",
	"ceph":                              "ceph-common",
	"rbd":                               "ceph-common",
	"ceph-mon":                          "ceph-mon",
	"ceph-osd":                          "ceph-osd",
	"ceph-mds":                          "ceph-mds",
	"ceph-fuse":                         "ceph-fuse",
	"qemu-system-x86_64":                "qemu-system-x86",
	"qemu-aarch64-static":               "qemu-user-static",
	"depmod":                            "kmod",
	"xz":                                "xz-utils",
	"mkfs.btrfs":                        "btrfs-progs",
	"mkfs.xfs":                          "xfsprogs",
	"bindfs":                            "bindfs",
	"rclone":                            "rclone",
	"s3fs":                              "s3fs",
	"sshfs":                             "sshfs",
	"/usr/lib/openssh/sftp-server":      "openssh-sftp-server",
	"mergerfs":                          "mergerfs",
	"/usr/include/seccomp.h":            "libseccomp-dev",
	"/usr/bin/cc":                       "gcc",
}

// Install installs the packages of the programs that are missing. It needs root only when something is missing. A
// program that it has never heard of is an error.
func Install(ctx context.Context, programs ...string) error {
	if missing, err := missingPackages(programs); err != nil || len(missing) == 0 {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find cache folder: %w", err)
	}
	dir := filepath.Join(cache, "kubediag", "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make cache folder: %w", err)
	}
	turn, err := lock.Take(ctx, filepath.Join(dir, ".install.lock"))
	if err != nil {
		return err
	}
	defer turn.Close()
	missing, err := missingPackages(programs)
	if err != nil || len(missing) == 0 {
		return err
	}
	restore, err := forbidDaemons()
	if err != nil {
		return err
	}
	defer restore()
	if err := apt(ctx, "update"); err != nil {
		return err
	}
	return apt(ctx, append([]string{"install", "-y", "--no-install-recommends"}, missing...)...)
}

func missingPackages(programs []string) ([]string, error) {
	var missing []string
	for _, program := range programs {
		if _, err := LookPath(program); err == nil {
			continue
		}
		if packages[program] == "" {
			return nil, fmt.Errorf("find package of program %q: unknown", program)
		}
		missing = append(missing, packages[program])
	}
	slices.Sort(missing)
	return slices.Compact(missing), nil
}

// LookPath finds a program in Path, which a user's own need not contain.
func LookPath(program string) (string, error) {
	if filepath.IsAbs(program) {
		_, err := os.Stat(program)
		return program, err
	}
	for _, dir := range filepath.SplitList(Path) {
		path := filepath.Join(dir, program)
		if st, err := os.Stat(path); err == nil && st.Mode()&0o111 != 0 && !st.IsDir() {
			return path, nil
		}
	}
	return "", fmt.Errorf("find program %q: %w", program, exec.ErrNotFound)
}

// forbidDaemons answers the question that Debian's packages ask before they start a service, for as long as it takes.
func forbidDaemons() (restore func(), err error) {
	const policy = "/usr/sbin/policy-rc.d"
	f, err := os.OpenFile(policy, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return func() {}, nil // the machine has a policy of its own
	}
	if err != nil {
		return nil, fmt.Errorf("forbid starting daemons: %w", err)
	}
	defer f.Close()
	_, err = f.WriteString("#!/bin/sh\nexit 101\n")
	return func() { os.Remove(policy) }, err
}

const (
	// said bounds what is told of a run that failed, in bytes.
	said = 4096
	// patience is how long another program may have what is locked, and retry how often that is looked at.
	patience = 10 * time.Minute
	retry    = time.Second
)

// apt runs apt-get, and again for as long as another program has one of its locks. The option DPkg::Lock::Timeout does not
// do: it is not for the lists and the archives, and apt before 1.9.11 does not know it.
func apt(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		out, err := cmd.CombinedOutput()
		if err == nil {
			return nil
		}
		err = fmt.Errorf("run apt-get %s: %w\n%s", args[0], err, out[max(0, len(out)-said):])
		if !lockedOut(out) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(retry):
		}
	}
}

// lockedOut reports whether apt-get has failed for a lock: then it names the file, in every language.
func lockedOut(out []byte) bool {
	return slices.ContainsFunc([]string{"/lists/lock", "/archives/lock", "/dpkg/lock"}, func(file string) bool {
		return bytes.Contains(out, []byte(file))
	})
}
