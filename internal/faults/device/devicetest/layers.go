// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devicetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// NewMapped is New with linear mappings of the device mapper over one loop device, as LVM makes them: the scene's own,
// and as many others as names are given, which the kubelet has mounted for the volumes of these names.
func NewMapped(t *testing.T, others ...string) (scene *Scene, below blockdev.Device, above []blockdev.Device) {
	t.Helper()
	if !lists(t, "/proc/misc", "device-mapper") {
		t.Attr(kerneltest.Lacks, "CONFIG_BLK_DEV_DM")
		t.Skip("kernel lacks CONFIG_BLK_DEV_DM")
	}
	const sectors = 16384 // 8 MiB
	scene = begin(t)
	scene.Image = filepath.Join(t.TempDir(), "image")
	node := loop(t, scene.Image, 8*int64(len(others)+1))
	for i := range len(others) + 1 {
		above = append(above, mapped(t, fmt.Sprintf("kubediag-%d-%d", os.Getpid(), i), fmt.Sprintf("0 %d linear %s %d", sectors, node, i*sectors)))
	}
	below, err := blockdev.Sys{}.Resolve(node)
	scene.must(err)
	scene.prepare(above[0].Node(), "ext4")
	for i, volume := range others {
		point := scene.globalMount(volume)
		scene.must(os.MkdirAll(point, 0o755))
		scene.must(sys.NewMount(above[i+1].Node(), point, "ext4", ""))
		t.Cleanup(func() { _ = systest.UnmountPath(point, true) })
	}
	return scene, below, above
}

func (s *Scene) globalMount(volume string) string {
	return filepath.Join(s.Root, "plugins/kubernetes.io/csi/pv", volume, "globalmount")
}

// UnmountVolume has the kubelet unmount one of the others that NewMapped has made.
func (s *Scene) UnmountVolume(volume string) {
	s.t.Helper()
	s.must(systest.UnmountPath(s.globalMount(volume), false))
}

// mapped makes a device of the device mapper with an ext4 on it, which goes with the test.
func mapped(t *testing.T, name, table string) blockdev.Device {
	t.Helper()
	run(t, "dmsetup", "create", "--noudevsync", name, "--table", table)
	t.Cleanup(func() {
		err := untilDone(func() error {
			_, err := runProgram("dmsetup", "remove", "--noudevsync", name)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	number := run(t, "dmsetup", "info", "--columns", "--noheadings", "-o", "major,minor", "--separator", ":", name)
	d, err := blockdev.Sys{}.Resolve(number)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.ext4", "-q", d.Node())
	return d
}

// NewBtrfs is New with a btrfs of two loop devices. The scene's device is the one that mounts name.
func NewBtrfs(t *testing.T) (scene *Scene, other blockdev.Device) {
	t.Helper()
	if !lists(t, "/proc/filesystems", "btrfs") {
		t.Attr(kerneltest.Lacks, "CONFIG_BTRFS_FS")
		t.Skip("kernel lacks CONFIG_BTRFS_FS")
	}
	scene = begin(t)
	scene.Image = filepath.Join(t.TempDir(), "image")
	first, second := loop(t, scene.Image, 128), loop(t, scene.Image+"2", 128)
	run(t, "mkfs.btrfs", "-q", first, second)
	run(t, "btrfs", "device", "scan", first, second)
	t.Cleanup(func() { run(t, "btrfs", "device", "scan", "--forget", first) })
	other, err := blockdev.Sys{}.Resolve(second)
	scene.must(err)
	scene.prepare(first, "btrfs")
	return scene, other
}

// lists reports whether a line of the file ends with the name.
func lists(t *testing.T, file, name string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] == name {
			return true
		}
	}
	return false
}
