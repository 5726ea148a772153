// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"testing"

	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// TestHolds: only mounts of the volume's own directory, and of those in it, are copies of it.
func TestHolds(t *testing.T) {
	t.Parallel()
	v := stagedEvidence("/csi/vol1//deleted", aliveAnswer(), aliveAnswer(), aliveAnswer())
	v.Staging.location.Major, v.Staging.location.Covered = 254, "/k/g/csi/vol1"
	for name, c := range map[string]struct {
		m   mountinfo.Mount
		sub string
		ok  bool
	}{
		"the directory":           {mountinfo.Mount{Minor: 49, Root: "/csi/vol1", FSType: "fuse.x"}, "", true},
		"marked":                  {mountinfo.Mount{Minor: 49, Root: "/csi/vol1//deleted", FSType: "fuse.x"}, "", true},
		"in it":                   {mountinfo.Mount{Minor: 49, Root: "/csi/vol1/a/b", FSType: "fuse.x"}, "a/b", true},
		"before it was remounted": {mountinfo.Mount{Minor: 48, Root: "/csi/vol1", FSType: "fuse.x"}, "", true},
		"type without its rest":   {mountinfo.Mount{Minor: 49, Root: "/csi/vol1", FSType: "fuse"}, "", true},
		"of the disk below":       {mountinfo.Mount{Major: 254, Root: "/k/g/csi/vol1/a", FSType: "ext4"}, "a", true},
		"elsewhere on that disk":  {mountinfo.Mount{Major: 254, Root: "/k/g/csi", FSType: "ext4"}, "", false},
		"name begins alike":       {mountinfo.Mount{Minor: 49, Root: "/csi/vol10", FSType: "fuse.x"}, "", false},
		"another type":            {mountinfo.Mount{Minor: 49, Root: "/csi/vol1", FSType: "fuse.y"}, "", false},
		"above it":                {mountinfo.Mount{Minor: 49, Root: "/csi", FSType: "fuse.x"}, "", false},
		"a name of its own":       {mountinfo.Mount{Minor: 49, Root: "mnt:[1]", FSType: "fuse.x"}, "", false},
	} {
		if sub, ok := v.pathInVolume(c.m); sub != c.sub || ok != c.ok {
			t.Errorf("%s: %q, %v, want %q, %v", name, sub, ok, c.sub, c.ok)
		}
	}
}
