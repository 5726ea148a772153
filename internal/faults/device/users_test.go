// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// TestMayKeep: a copy is in the kubelet's way only if the place of its volume is still there and nothing is mounted on it. The file systems that
// each container has of its own are left out, and so are those of another kubelet.
func TestMayKeep(t *testing.T) {
	t.Parallel()
	node, err := kubelet.Local(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const uid = "5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10"
	pod, staging := node.PodDir(uid), filepath.Join(node.PluginsDir(), "kubernetes.io/csi/d/0a/globalmount")
	left, again, bind := pod+"/volumes/kubernetes.io~secret/token", pod+"/volumes/kubernetes.io~secret/again", pod+"/volume-subpaths/v/c/0"
	for _, dir := range []string{left, again, bind, staging, pod + "/other"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mounts, err := mountinfo.ParseBytes([]byte("1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:50 / " + again + " rw - tmpfs t rw\n"))
	if err != nil {
		t.Fatal(err)
	}
	n := &inspection{node: node, table: mountinfo.NewTable(mounts)}
	for point, want := range map[string]bool{
		left: true, "/host" + left: true, "/host" + bind: true, "/host" + staging: true,
		"/host" + again: false, pod + "/volumes/kubernetes.io~secret/gone": false, pod + "/other": false, "/dev/shm": false,
		"/other/pods/" + uid + "/volumes/kubernetes.io~secret/token": false,
	} {
		for fsType, copied := range map[string]bool{"tmpfs": true, "nfs4": true, "fuse.s3fs": true, "overlay": true, "proc": false, "cgroup2": false, "mqueue": false} {
			if got := n.mayKeep(t.Context(), mountns.Mount{Mount: mountinfo.Mount{Point: point, FSType: fsType}}); got != (want && copied) {
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

// TestHiddenAt: a mount of the kubelet keeps its device though no path leads to it, if another mount lies on each of its mounts.
func TestHiddenAt(t *testing.T) {
	t.Parallel()
	host := mountns.Namespace{Inode: 1}
	disk := func(id, parent int, point string) mountinfo.Mount {
		return mountinfo.Mount{ID: id, Parent: parent, Major: 8, Minor: 1, Root: "/", Point: point}
	}
	over := mountinfo.Mount{ID: 9, Parent: 2, Minor: 7, Root: "/", Point: "/k/a"}
	for name, c := range map[string]struct {
		mounts []mountinfo.Mount // of the disk
		in     mountns.Namespace
		want   string
	}{
		"hidden":                {[]mountinfo.Mount{disk(2, 1, "/k/a")}, host, "/k/a"},
		"shown elsewhere":       {[]mountinfo.Mount{disk(2, 1, "/k/a"), disk(3, 1, "/k/b")}, host, ""},
		"in another namespace":  {[]mountinfo.Mount{disk(2, 1, "/k/a")}, mountns.Namespace{Inode: 2}, ""},
		"its number is unknown": {[]mountinfo.Mount{disk(0, 1, "/k/a")}, host, ""},
	} {
		n := &inspection{host: host, table: mountinfo.NewTable(append([]mountinfo.Mount{{ID: 1, Root: "/", Point: "/"}, over}, c.mounts...))}
		var holders []devholder.Holder
		for _, m := range c.mounts {
			holders = append(holders, devholder.Holder{Kind: devholder.Mount, Mount: mountns.Mount{Mount: m, Namespace: c.in}})
		}
		if got := n.hiddenAt(holders); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
