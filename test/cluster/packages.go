// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import "kubediag.org/kubediag/test/debian"

// nodePrograms are the programs for a node; a control plane needs etcd only.
var nodePrograms = []string{"containerd", "ctr", "runc", debian.CNIPlugins + "/bridge", "busybox", "ip"}

// diskPrograms are the programs for a disk of the kubelet's own, and for other disks.
var diskPrograms = []string{"mkfs.ext4", "mount", "losetup"}
