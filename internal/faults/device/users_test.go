// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"testing"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// TestMayBeCopy leaves out the file systems that each container has of its own.
func TestMayBeCopy(t *testing.T) {
	t.Parallel()
	for point, want := range map[string]bool{
		"/host/var/lib/kubelet/pods/u/volumes/kubernetes.io~secret/token":  true,
		"/k/u/volume-subpaths/v/c/0":                                       true,
		"/host/var/lib/kubelet/plugins/kubernetes.io/csi/d/0a/globalmount": true,
		"/globalmount":                           true,
		"/kubernetes.io/rbd/mounts/pool-image-v": true,
		"/dev":                                   false,
		"/dev/shm":                               false,
		"/data":                                  false,
	} {
		for fsType, copied := range map[string]bool{"tmpfs": true, "nfs4": true, "fuse.s3fs": true, "overlay": true, "proc": false, "cgroup2": false, "mqueue": false} {
			if got := mayBeCopy(mountns.Mount{Mount: mountinfo.Mount{Point: point, FSType: fsType}}); got != (want && copied) {
				t.Errorf("%s at %s: %t", fsType, point, got)
			}
		}
	}
}

// TestNameOfUsage: a number that is no device's is a file system.
func TestNameOfUsage(t *testing.T) {
	t.Parallel()
	inMemory := blockdev.Device{Number: blockdev.Number{Minor: 57}, Name: "0:57", Kind: blockdev.Anonymous}
	disk := blockdev.Device{Number: blockdev.Number{Major: 252, Minor: 48}, Name: "rbd3", Kind: blockdev.KRBD}
	for name, c := range map[string]struct {
		report  devholder.Report
		subject string
		code    fault.Code
	}{
		"disk":       {devholder.Report{Device: disk}, "device /dev/rbd3 (252:48)", fault.HeldDevice},
		"in memory":  {devholder.Report{Device: inMemory, FileSystems: []blockdev.FileSystem{{Type: "tmpfs"}}}, "tmpfs file system 0:57", fault.HeldMount},
		"mount gone": {devholder.Report{Device: inMemory}, "file system 0:57", fault.HeldMount},
	} {
		if u := (&Usage{Report: &c.report}); u.Subject() != c.subject || u.code() != c.code {
			t.Errorf("%s: %q, %s", name, u.Subject(), u.code())
		}
	}
}
