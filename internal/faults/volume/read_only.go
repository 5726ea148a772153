// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/podinfo"
)

// readOnlyTypes are file systems that nothing can write to.
var readOnlyTypes = []string{"cramfs", "erofs", "iso9660", "romfs", "squashfs", "udf"}

// noWritesReason says that the device of a mount does not take all writes; empty: it does.
func noWritesReason(h blockdev.Health) string {
	if h.NoWrites == "" {
		return ""
	}
	return "not all writes to its device succeed (" + h.NoWrites + "): a block that is written for the first time has no place"
}

// readOnlyReason says that the kernel has made the file system of a mount read-only after an error; empty: it has not, as
// far as the mount table and the errors show that it has noted. A file system that is mounted read-only has a mount that is, too.
func readOnlyReason(m mountinfo.Mount, h blockdev.Health) string {
	switch {
	case h.Errors > 0 && (hasOption(m.SuperOptions, "emergency_ro") || hasOption(m.SuperOptions, "ro")):
		return fmt.Sprintf("its file system is read-only, and has noted errors (%d since it was last checked): nothing can be written to it", h.Errors)
	case !hasOption(m.Options, "rw") || slices.Contains(readOnlyTypes, m.FSType):
		return ""
	case hasOption(m.SuperOptions, "emergency_ro"):
		return "the kernel has made its file system read-only after an error (emergency_ro): nothing can be written to it"
	case hasOption(m.SuperOptions, "ro"):
		return "its mount is writable and its file system is read-only, as the kernel makes it after an error: nothing can be written to it"
	case h.ReadOnly:
		return "its device has become read-only since it was mounted to be written: no write gets there from memory, and the file system fails with the first"
	}
	return ""
}

func hasOption(options, option string) bool {
	return slices.Contains(strings.Split(options, ","), option)
}

// wantsReadOnly reports whether the pod's spec asks for nothing but to read the volume.
func (v *Volume) wantsReadOnly() bool {
	pod := v.spec.pod
	if pod == nil {
		return false
	}
	may := v.inSpec(pod)
	return len(may) > 0 && !slices.ContainsFunc(may, func(s corev1.Volume) bool { return podinfo.MayWrite(pod, s) })
}
