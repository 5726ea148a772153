// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"

	"kubediag.org/kubediag/test/debian"
)

const (
	cniPlugins = debian.CNIPlugins
	searchPath = debian.Path
)

// nodePrograms are what a node needs; a control plane needs etcd only.
var nodePrograms = []string{"containerd", "ctr", "runc", cniPlugins + "/bridge", "busybox", "ip"}

// diskPrograms are what a disk of the kubelet's own needs, and other disks.
var diskPrograms = []string{"mkfs.ext4", "mount", "losetup"}

func installPackages(ctx context.Context, programs ...string) error {
	return debian.Install(ctx, programs...)
}

func lookPath(program string) (string, error) { return debian.LookPath(program) }
