// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseVolume(t *testing.T) {
	t.Parallel()
	node := &Layout{Root: "/k", podsDir: "/disk/pods"}
	for point, want := range map[string]Volume{
		"/disk/pods/u/volumes/kubernetes.io~csi/pvc-1/mount":     {"u", "kubernetes.io/csi", "pvc-1", false},
		"/disk/pods/u/volumes/kubernetes.io~nfs/data":            {"u", "kubernetes.io/nfs", "data", false},
		"/disk/pods/u/volumes/kubernetes.io~csi/mount/mount":     {"u", "kubernetes.io/csi", "mount", false},
		"/disk/pods/u/volumes/example.com~flex/v":                {"u", "example.com/flex", "v", false},
		"/disk/pods/u/volumes/kubernetes.io~csi/pvc-1":           {},
		"/disk/pods/u/volumes/kubernetes.io~csi/pvc-1/mount/x":   {},
		"/disk/pods/u/volumes/kubernetes.io~csi/pvc-1/other":     {},
		"/disk/pods/u/volumes/kubernetes.io~nfs/data/deeper":     {},
		"/disk/pods/u/volumes/kubernetes.io~csi/../pvc-1/mount":  {},
		"/disk/pods/../volumes/kubernetes.io~csi/pvc-1/mount":    {},
		"/disk/pods/u/volumes//pvc-1":                            {},
		"/disk/pods/u/volume-subpaths/kubernetes.io~nfs/data":    {},
		"/disk/podsx/u/volumes/kubernetes.io~nfs/data":           {},
		"/k/pods/u/volumes/kubernetes.io~nfs/data":               {},
		"/disk/pods/u/volumes/kubernetes.io~csi/pvc-1/mount\x00": {},
	} {
		got, ok := node.ParseVolume(point)
		if ok != (want != Volume{}) || ok && got != want {
			t.Errorf("%q: %+v, %v, want %+v", point, got, ok, want)
		}
		if ok && node.VolumePoint(got) != point {
			t.Errorf("%q is built as %q", point, node.VolumePoint(got))
		}
	}
}

func TestStagingPoints(t *testing.T) {
	t.Parallel()
	node := &Node{Layout: Layout{Root: "/k", podsDir: "/k/pods"}}
	got := node.StagingPoints("cephfs.csi.ceph.com", "handle/1", "pvc-1")
	want := []string{
		"/k/plugins/kubernetes.io/csi/cephfs.csi.ceph.com/e89bd7420806771448e70fba2f442081e5f8a4511425816c2bdccf257c981577/globalmount",
		"/k/plugins/kubernetes.io/csi/pv/pvc-1/globalmount",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, odd := range [][3]string{{"..", "h", "/"}, {"a/b", "h", ".."}, {"", "", ""}, {"d", "", ""}} {
		if got := node.StagingPoints(odd[0], odd[1], odd[2]); len(got) != 0 {
			t.Errorf("%q: %q, want none", odd, got)
		}
	}
	if got := VolumeRecordPath(want[1]); got != "/k/plugins/kubernetes.io/csi/pv/pvc-1/vol_data.json" {
		t.Errorf("record at %q", got)
	}
}

func TestPodUIDs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	node, err := Local(root)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := node.PodUIDs(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("%q, %v, want none where there is no directory yet", got, err)
	}
	for _, uid := range []string{"b", "a"} {
		if err := os.MkdirAll(node.PodDir(uid), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got, err := node.PodUIDs(t.Context())
	if slices.Sort(got); err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestOwnPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"disk/pods", "other/pods"} {
		if err := os.MkdirAll(dir+"/"+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("disk", dir+"/kubelet"); err != nil {
		t.Fatal(err)
	}
	node, err := Local(dir + "/kubelet")
	if err != nil {
		t.Fatal(err)
	}
	own := dir + "/disk/pods/u/volumes/p/v"
	for reported, want := range map[string]string{
		dir + "/kubelet/pods/u/volumes/p/v":  own,
		dir + "/disk/pods/u/volumes/p/v":     own,
		dir + "/kubelet/pods/u/volumes/p/v/": own,
		dir + "/kubelet/pods/x/volumes/p/v":  dir + "/kubelet/pods/x/volumes/p/v",
		dir + "/other/pods/u/volumes/p/v":    dir + "/other/pods/u/volumes/p/v",
		dir + "/absent/pods/u/volumes/p/v":   dir + "/absent/pods/u/volumes/p/v",
	} {
		if got := node.OwnPath(reported, "u"); got != want {
			t.Errorf("%q: %q, want %q", reported, got, want)
		}
	}
}

// TestParseStaging finds the places at which a volume is mounted for the whole node.
func TestParseStaging(t *testing.T) {
	t.Parallel()
	l := Layout{Root: "/k"}
	for name, want := range map[string][2]bool{ // of a CSI driver, staging path
		"csi/d/1/globalmount":      {true, true},
		"csi/pv/x/globalmount":     {true, true},
		"csi/d/1/globalmount/x":    {true, false},
		"csi/d/1":                  {true, false},
		"gce-pd/mounts/disk":       {false, true},
		"local-volume/mounts/pv":   {false, false},
		"gce-pd/mounts/disk/below": {false, false},
	} {
		csi, ok := l.ParseStaging("/k/plugins/kubernetes.io/" + name)
		if ok != want[1] || ok && csi != want[0] {
			t.Errorf("%s: %v, %v, want %v", name, csi, ok, want)
		}
	}
	for _, point := range []string{"/k/plugins/d.example.com/csi/d/1/globalmount", "/k/pods/u/globalmount", "/srv"} {
		if _, ok := l.ParseStaging(point); ok {
			t.Errorf("%s is a staging path", point)
		}
	}
}
