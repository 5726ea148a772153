// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import "strings"

// Words of a text in the form that simplify gives it.
var (
	// disconnected are how ENOTCONN, ECONNABORTED and ESHUTDOWN are worded by C libraries. Sockets know them too.
	disconnected = []string{
		"transport endpoint is not connected", "socket not connected", "software caused connection abort",
		"cannot send after transport endpoint shutdown", "cannot send after socket shutdown",
	}
	// stale are how ESTALE is worded; no socket knows it.
	stale = []string{"stale file handle", "stale nfs file handle"}
	// networks are said of sockets.
	networks = []string{" tcp ", " tcp4 ", " tcp6 ", " udp ", "socketexception", "getpeername", "shutdown:", "recv:", "send:"}
	// volumeWork is what a kubelet asks of a driver.
	volumeWork = []string{
		"mountvolume", "mountdevice", "unmountvolume", "unmountdevice", "teardown", "nodestagevolume", "nodeunstagevolume", "nodepublishvolume",
		"nodeunpublishvolume",
	}
)

// brokenVolumes reads a text for volumes that are there and do not serve, and for those of pods that are gone.
func brokenVolumes(plain string) (codes []Code) {
	if speaksOfDisconnection(plain) {
		codes = append(codes, DisconnectedFUSE)
	}
	if containsAny(plain, stale...) {
		codes = append(codes, StaleFileHandle)
	}
	if speaksOfHang(plain) {
		codes = append(codes, HungMount)
	}
	if speaksOfOrphans(plain) {
		codes = append(codes, OrphanedPodVolumes)
	}
	if strings.Contains(plain, "mountpoint is not empty") || strings.Contains(plain, "nonempty mount option") {
		codes = append(codes, DeletedVolumeSource) // what was written to the node's disk meanwhile
	}
	return codes
}

// speaksOfDisconnection tells whether a text says of a path, or while it speaks of mounting, that its connection is gone.
func speaksOfDisconnection(plain string) bool {
	for _, words := range disconnected {
		before, _, found := strings.Cut(plain, words)
		if !found {
			continue
		}
		_, path := lastTwoWords(strings.TrimRight(before, ": "))
		if strings.HasPrefix(path, "/") || speaksOfMounts(plain) && !containsAny(plain, networks...) {
			return true
		}
	}
	// mount(8) says so where it cannot ask for the source.
	return missingDevice(plain) || brokenBeforeMkdir(plain)
}

// missingDevice is what mount(8) says of a bind whose source it cannot ask for. Of a device it is not about volumes.
func missingDevice(plain string) bool {
	_, rest, found := strings.Cut(plain, "special device ")
	path, _, _ := strings.Cut(rest, " does not exist")
	return found && strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "/dev/") && len(path) < len(rest)
}

// brokenBeforeMkdir is what a runtime says that was refused the source of a mount, and then tried to make it.
func brokenBeforeMkdir(plain string) bool {
	return strings.Contains(plain, "failed to mkdir") && strings.Contains(plain, "file exists") && ofVolume(plain)
}

func speaksOfHang(plain string) bool {
	switch {
	case strings.Contains(plain, "nfs: server ") && strings.Contains(plain, "not responding"):
		return true
	case strings.Contains(plain, "operation with the given volume id") && strings.Contains(plain, "already exists"): // of ceph-csi and others
		return true
	}
	return containsAny(plain, "deadlineexceeded", "deadline exceeded") && containsAny(plain, volumeWork...)
}

func speaksOfOrphans(plain string) bool {
	switch {
	case strings.Contains(plain, "failed to open volume data file") && strings.Contains(plain, missing):
		return true
	case strings.Contains(plain, "could not construct volume information") && strings.Contains(plain, "is not mounted"):
		return true
	case strings.Contains(plain, "failed to remove orphaned pod"):
		return true
	}
	_, rest, found := strings.Cut(plain, "orphaned pod ")
	return found && strings.Contains(rest, " found, but ")
}

// ofVolume tells whether a text names a place below .../volumes/<plugin with ~ for />/, where a kubelet keeps volumes.
func ofVolume(plain string) bool {
	for {
		_, rest, found := strings.Cut(plain, "/volumes/")
		if !found {
			return false
		}
		plugin, _, _ := strings.Cut(rest, "/")
		if strings.Contains(plugin, "~") && !strings.Contains(plugin, " ") {
			return true
		}
		plain = rest
	}
}
