// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"testing"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// TestHolds: only mounts of the volume's own directory, and of those in it, are copies of it.
func TestHolds(t *testing.T) {
	t.Parallel()
	v := staged("/csi/vol1//deleted", alive(), alive(), alive())
	v.Staging.location.disk, v.Staging.location.covered = device{254, 0}, "/k/g/csi/vol1"
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
		if sub, ok := v.holds(c.m); sub != c.sub || ok != c.ok {
			t.Errorf("%s: %q, %v, want %q, %v", name, sub, ok, c.sub, c.ok)
		}
	}
}

func TestSameMount(t *testing.T) {
	t.Parallel()
	m := fault.Mount{ID: 5, MountInfoID: 1, ParentID: 2, Namespace: 3, Device: "0:49", Root: "/", Point: "/p"}
	for name, c := range map[string]struct {
		change func(*fault.Mount)
		want   bool
	}{
		"the same":                  {func(*fault.Mount) {}, true},
		"another number":            {func(m *fault.Mount) { m.ID = 6 }, false},
		"moved":                     {func(m *fault.Mount) { m.ParentID = 9 }, true},
		"no number":                 {func(m *fault.Mount) { m.ID = 0 }, true},
		"no number, another parent": {func(m *fault.Mount) { m.ID, m.ParentID = 0, 9 }, false},
		"no number, another root":   {func(m *fault.Mount) { m.ID, m.Root = 0, "/x" }, false},
		"another namespace":         {func(m *fault.Mount) { m.Namespace = 4 }, false},
	} {
		other := m
		c.change(&other)
		if got := sameMount(m, other); got != c.want || sameMount(other, m) != got {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
