// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPodVolumes(t *testing.T) {
	t.Parallel()
	node, err := Local(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"volumes/kubernetes.io~csi/pv-1/mount", "volumes/kubernetes.io~empty-dir/cache", "volumeDevices/kubernetes.io~csi"} {
		if err := os.MkdirAll(filepath.Join(node.PodDir("u"), dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(node.PodDir("u"), "volumeDevices/kubernetes.io~csi/pv-2")
	if err := os.Symlink("/dev/rbd7", link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(node.PodDir("u"), "volumes/file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := node.PodVolumes("u")
	if err != nil {
		t.Fatal(err)
	}
	got := map[Volume]bool{}
	for _, v := range all {
		got[v] = true
	}
	want := map[Volume]bool{
		{"u", CSIPlugin, "pv-1", false}: true, {"u", "kubernetes.io/empty-dir", "cache", false}: true, {"u", CSIPlugin, "pv-2", true}: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	if got := node.VolumePoint(Volume{"u", CSIPlugin, "pv-2", true}); got != link {
		t.Errorf("the device is at %q, want %q", got, link)
	}
	if all, err := node.PodVolumes("gone"); err != nil || len(all) > 0 {
		t.Errorf("of a pod without a directory: %v, %v", all, err)
	}
	if node.LocalVolumePoint("a/b") != "" || node.LocalVolumePoint("pv") != node.PluginsDir()+"/kubernetes.io/local-volume/mounts/pv" {
		t.Errorf("local volume at %q", node.LocalVolumePoint("pv"))
	}
}

// TestPodVolumesAreListedOnce by a node that is ReadOnce, and at each call by another one.
func TestPodVolumesAreListedOnce(t *testing.T) {
	t.Parallel()
	n, err := Local(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	add := func(plugin string) {
		if err := os.MkdirAll(filepath.Join(n.PodDir("u"), "volumes", plugin, "v"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	count := func(n *Node) int {
		all, err := n.PodVolumes("u")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	once := n.ReadOnce()
	add("kubernetes.io~empty-dir")
	if got := count(once); got != 1 {
		t.Errorf("%d volumes, want 1", got)
	}
	add("kubernetes.io~secret")
	if first, now, another := count(once), count(once.Live()), count(n.ReadOnce()); first != 1 || now != 2 || another != 2 {
		t.Errorf("%d volumes once, %d now, %d of another node; want 1, 2 and 2", first, now, another)
	}
}
