// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelog

import (
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
)

// maxWording bounds how much of a text is compared with the wordings, in bytes. The kubelet cuts messages far earlier.
const maxWording = 64 << 10

// wording is how programs describe a fault: one phrase of each list, and none of the others. Phrases are as simplify
// writes them.
type wording struct {
	code fault.Code
	all  [][]string
	none []string
}

var (
	enoent = []string{"no such file or directory"}
	// mounting also takes a container that cannot be configured because a path is missing.
	mounting = []string{"mount", "subpath", "rootfs", "createcontainerconfigerror", "generate spec"}
	subPath  = []string{"subpath"}
	// ofVolume is in the paths of the kubelet's volumes.
	ofVolume = []string{"/volumes/kubernetes.io~"}
	// lookups say that the path was not found; where the mount itself fails, it was.
	lookups    = []string{" stat /", " lstat /", " open /", " access /", "special device"}
	deleted    = []string{"//deleted "}
	otherKinds = []string{"not a directory", "is a directory", "onto a file", "onto a directory"}
)

var wordings = []wording{
	{code: fault.HeldDevice, all: [][]string{
		{"resource busy", "target is busy", "device is busy", "already mounted or", "apparently in use by the system"},
		{
			"unmap", "unmount", "umount", "detach", "remove ioctl", "reset", "mkfs", "wipefs", "will not make a filesystem",
			"probing initialization", "/dev/", "mount directory", "globalmount", "/volumes/kubernetes.io~",
		},
	}, none: []string{ // volumes in memory or on the node's own disk, and what the runtime makes
		"kubernetes.io~secret", "kubernetes.io~configmap", "kubernetes.io~projected", "kubernetes.io~downward-api", "kubernetes.io~empty-dir",
		"/sys/fs/cgroup", "/netns/", "root filesystem", "/run/containerd/", "/lib/containerd/", "/lib/docker/", "/containers/storage/",
	}},
	{code: fault.HeldDevice, all: [][]string{{"unmap"}, {"exit status 16"}}}, // 16 is EBUSY
	{code: fault.HeldDevice, all: [][]string{{"rbd image"}, {"still being used"}}},
	{code: fault.HeldDevice, all: [][]string{{"unable to remove open device"}}},

	{code: fault.DisconnectedFUSE, all: [][]string{{
		"transport endpoint is not connected", "socket not connected", "software caused connection abort",
		"cannot send after transport endpoint shutdown", "cannot send after socket shutdown",
	}}, none: []string{" tcp ", " tcp4 ", " tcp6 ", " udp ", "socketexception", "getpeername", "shutdown:", "recv:", "send:"}},
	{code: fault.DisconnectedFUSE, all: [][]string{{"special device /"}, {" does not exist"}}, none: []string{"special device /dev/"}},
	{code: fault.DisconnectedFUSE, all: [][]string{{"failed to mkdir"}, {"file exists"}, ofVolume}},
	{code: fault.StaleFileHandle, all: [][]string{{"stale file handle", "stale nfs file handle"}}},
	{code: fault.VolumeIOError, all: [][]string{{"host is down", "input/output error", "structure needs cleaning"}, {ofVolume[0], "globalmount"}}},
	{code: fault.HungMount, all: [][]string{{"nfs: server "}, {"not responding"}}},
	{code: fault.HungMount, all: [][]string{{"operation with the given volume id"}, {"already exists"}}}, // of ceph-csi and others
	{code: fault.HungMount, all: [][]string{{"deadlineexceeded", "deadline exceeded"}, {
		"mountvolume", "mountdevice", "unmountvolume", "unmountdevice", "teardown", "nodestagevolume", "nodeunstagevolume",
		"nodepublishvolume", "nodeunpublishvolume",
	}}},
	{code: fault.OrphanedPodVolumes, all: [][]string{{"failed to open volume data file"}, enoent}},
	{code: fault.OrphanedPodVolumes, all: [][]string{{"could not construct volume information"}, {"is not mounted"}}},
	{code: fault.OrphanedPodVolumes, all: [][]string{{"failed to remove orphaned pod"}}},
	{code: fault.OrphanedPodVolumes, all: [][]string{{"orphaned pod "}, {" found, but "}}},
	{code: fault.DeletedVolumeSource, all: [][]string{{"mountpoint is not empty", "nonempty mount option"}}},

	{code: fault.SourceTypeMismatch, all: [][]string{mounting, otherKinds}},
	{code: fault.StaleSubPath, all: [][]string{{"prepare subpath"}}},
	{code: fault.StaleSubPath, all: [][]string{subPath, deleted}, none: otherKinds},
	{code: fault.StaleSubPath, all: [][]string{subPath, enoent}, none: slices.Concat(otherKinds, lookups)},
	{code: fault.StaleSubPath, all: [][]string{mounting, enoent}, none: slices.Concat(otherKinds, lookups, ofVolume)},
	{code: fault.DeletedVolumeSource, all: [][]string{mounting, ofVolume, deleted}, none: slices.Concat(otherKinds, subPath)},
	{code: fault.DeletedVolumeSource, all: [][]string{mounting, ofVolume, enoent}, none: slices.Concat(otherKinds, subPath, lookups)},
	{code: fault.MissingBindSource, all: [][]string{mounting, enoent, lookups}, none: slices.Concat(otherKinds, deleted)},
	{code: fault.MissingBindSource, all: [][]string{mounting, enoent}, none: slices.Concat(otherKinds, deleted, subPath)},
	{code: fault.MissingBindSource, all: [][]string{{"special device /"}, {" does not exist"}}, none: []string{"special device /dev/"}},
}

// codes lists the faults whose wordings a text has, in order. It proves nothing.
func codes(text string) (found []fault.Code) {
	plain := simplify(text)
	for _, w := range wordings {
		if !slices.ContainsFunc(w.all, func(phrases []string) bool { return !hasAny(plain, phrases) }) && !hasAny(plain, w.none) {
			found = append(found, w.code)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// simplify returns text in small letters, one space between words and one at either end, without anything that quotes.
func simplify(text string) string {
	text = strings.Map(func(r rune) rune {
		switch r {
		case '\\', '"', '\'', '`', '‘', '’', '“', '”':
			return -1
		}
		return r
	}, strings.ToLower(text[:min(len(text), maxWording)]))
	return " " + strings.Join(strings.Fields(text), " ") + " "
}

func hasAny(text string, phrases []string) bool {
	return slices.ContainsFunc(phrases, func(p string) bool { return strings.Contains(text, p) })
}
