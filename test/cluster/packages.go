// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// cniPlugins is where Debian puts the CNI plugins.
const cniPlugins = "/usr/lib/cni"

// searchPath is the PATH of everything that a cluster starts.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// packages names the Debian package of each program that a cluster needs beside Kubernetes itself.
var packages = map[string]string{
	"etcd":                 "etcd-server",
	"containerd":           "containerd",
	"ctr":                  "containerd",
	"runc":                 "runc",
	cniPlugins + "/bridge": "containernetworking-plugins",
	"busybox":              "busybox-static",
	"ip":                   "iproute2",
	"mkfs.ext4":            "e2fsprogs",
	"mount":                "mount",
	"losetup":              "mount",
	exporter:               "prometheus-node-exporter",
}

// nodePrograms are what a node needs; a control plane needs etcd only.
var nodePrograms = []string{"containerd", "ctr", "runc", cniPlugins + "/bridge", "busybox", "ip"}

// diskPrograms are what a disk of the kubelet's own needs, and other disks.
var diskPrograms = []string{"mkfs.ext4", "mount", "losetup"}

// installPackages installs the Debian packages of the programs that are missing, and lets none of them start a
// daemon: a cluster runs its own. It needs root only when something is missing.
func installPackages(ctx context.Context, programs ...string) error {
	if len(missingPackages(programs)) == 0 {
		return nil
	}
	bin, err := cacheDir("bin")
	if err != nil {
		return err
	}
	l, err := lock(ctx, filepath.Join(bin, ".lock"))
	if err != nil {
		return err
	}
	defer l.Close()
	missing := missingPackages(programs)
	if len(missing) == 0 {
		return nil
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

func missingPackages(programs []string) []string {
	var missing []string
	for _, program := range programs {
		if _, err := lookPath(program); err != nil {
			missing = append(missing, packages[program])
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// lookPath finds a program in searchPath, which a user's PATH need not contain.
func lookPath(program string) (string, error) {
	if filepath.IsAbs(program) {
		_, err := os.Stat(program)
		return program, err
	}
	for _, dir := range filepath.SplitList(searchPath) {
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

func apt(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run apt-get %s: %w\n%s", args[0], err, tail(out, 4096))
	}
	return nil
}
