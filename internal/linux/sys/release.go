// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// OldestKernel is the oldest mainline version on which the module is tested.
const OldestKernel = "5.10"

// Release is the release of the running kernel, as uname -r prints it; empty if the kernel gives none.
func Release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// TooOld reports whether a release is older than OldestKernel. A release that does not
// begin with two numbers is not.
func TooOld(release string) bool { return isOlder(release, OldestKernel) }

// isOlder reports whether a release is older than a version. A release that does not begin with two numbers is not.
func isOlder(release, version string) bool {
	major, minor, ok := parseVersion(release)
	firstMajor, firstMinor, _ := parseVersion(version)
	return ok && (major < firstMajor || major == firstMajor && minor < firstMinor)
}

func parseVersion(release string) (major, minor int, ok bool) {
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return major, minor, n == 2
}
