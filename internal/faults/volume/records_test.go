// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"testing"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/test/growthtest"
)

// TestRecordsOfAContainerGrow has as many records of the runtime as mounts in a container: the records are not gone through for each mount.
func TestRecordsOfAContainerGrow(t *testing.T) {
	growthtest.Check(t, 300, func(n int) (work func()) {
		space, owner := mountns.Namespace{Inode: 7}, &cri.Owner{}
		var mounts []mountns.Mount
		for i := range n {
			owner.Mounts = append(owner.Mounts, cri.Mount{HostPath: fmt.Sprint("/from/", i), ContainerPath: fmt.Sprint("/record/", i)})
			mounts = append(mounts, mountns.Mount{Namespace: space, Mount: mountinfo.Mount{ID: i + 1, Point: fmt.Sprint("/mount/", i), FSType: "fuse.x"}})
		}
		return func() {
			other := &otherNamespace{namespace: space}
			other.setOwner(owner)
			spaces := &namespaces{
				seen: &mountstate.Survey{}, byKey: map[mountns.Key]*otherNamespace{space.Key(): other},
				lastTable: cachedTable{key: space.Key(), table: mountinfo.NewTable(nil), read: true},
			}
			s := &copySearch{namespaces: spaces, host: &hostMounts{node: &kubelet.Node{Layout: kubelet.Layout{Root: "/var/lib/kubelet"}}}}
			spaces.recordedFirst(mounts)
			for _, m := range mounts {
				if _, ok := s.runtimeRecordOf(&Copy{Mount: m}, other); ok {
					t.Fatalf("there is a record of %q", m.Point)
				}
				if _, _, ok := recordAbove(m.Point, other); ok {
					t.Fatalf("there is a record above %q", m.Point)
				}
			}
		}
	})
}

// TestRecordAbove: the nearest record above a mount counts, and of two at one path the later one.
func TestRecordAbove(t *testing.T) {
	t.Parallel()
	other := &otherNamespace{}
	other.setOwner(&cri.Owner{Mounts: []cri.Mount{
		{HostPath: "/covered", ContainerPath: "/data/"}, {HostPath: "/data-of-host", ContainerPath: "/data"}, {HostPath: "/deep", ContainerPath: "data/deep"},
	}})
	for point, want := range map[string]string{
		"/data": "/data-of-host ", "/data/x/y": "/data-of-host x/y", "/data/deep/z": "/deep z", "/database": "", "/": "", "": "", "//deleted": "",
	} {
		record, below, ok := recordAbove(point, other)
		got := record.HostPath + " " + below
		if !ok {
			got = ""
		}
		if got != want {
			t.Errorf("above %q: %q, want %q", point, got, want)
		}
	}
	other.setOwner(&cri.Owner{Mounts: []cri.Mount{{HostPath: "/", ContainerPath: "/"}}})
	if record, below, ok := recordAbove("/x", other); !ok || record.HostPath != "/" || below != "x" {
		t.Errorf("%+v, %q, %v", record, below, ok)
	}
}
