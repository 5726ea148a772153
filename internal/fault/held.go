// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import "strings"

// Words of a text in the form that simplify gives it.
var (
	// busyWords are how EBUSY is worded by C libraries and tools.
	busyWords = []string{"resource busy", "target is busy", "device is busy", "already mounted or", "apparently in use by the system"}
	// releases are the pieces of work that a held device refuses, the programs and files that do it, and the places where
	// what is mounted is a volume.
	releases = []string{
		"unmap", "unmount", "umount", "detach", "remove ioctl", "remove open device", "reset", "mkfs", "wipefs", "will not make a filesystem",
		"probing initialization", "/dev/", "mount directory", "globalmount", "/volumes/kubernetes.io~",
	}
	// noDevice are the things that are busy in the same words and are no block device: volumes in memory or of the node's
	// own disk, control groups, network namespaces, and the runtime's root file systems.
	noDevice = []string{
		"kubernetes.io~secret", "kubernetes.io~configmap", "kubernetes.io~projected", "kubernetes.io~downward-api", "kubernetes.io~empty-dir",
		"/sys/fs/cgroup", "/netns/", "root filesystem", "/run/containerd/", "/lib/containerd/", "/lib/docker/", "/containers/storage/",
	}
)

// speaksOfHeldDevice tells whether plain says that a device could not be given up because something has it still.
func speaksOfHeldDevice(plain string) bool {
	switch {
	case containsAny(plain, noDevice...):
		return false
	case strings.Contains(plain, "unmap") && strings.Contains(plain, "exit status 16"): // 16 is EBUSY
		return true
	case strings.Contains(plain, "rbd image") && strings.Contains(plain, "still being used"): // said on another node
		return true
	}
	return containsAny(plain, busyWords...) && containsAny(plain, releases...) || strings.Contains(plain, "unable to remove open device")
}
