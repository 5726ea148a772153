// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHealth reads devices that lie on others: a volume of LVM on an encrypted partition of a multipath device.
func TestHealth(t *testing.T) {
	t.Parallel()
	const tree = `
sys/dev/block/253:2 -> ../../devices/virtual/block/dm-2
sys/dev/block/8:17 -> ../../devices/pci/block/sdb/sdb1
sys/dev/block/7:0 -> ../../devices/virtual/block/loop0
sys/class/block/dm-2/dev = 253:2
sys/class/block/dm-2/dm/suspended = 0
sys/class/block/dm-2/slaves/dm-1/dev = 253:1
sys/class/block/dm-1/dev = 253:1
sys/class/block/dm-1/dm/suspended = 0
sys/class/block/dm-1/slaves/dm-0/dev = 253:0
sys/class/block/dm-0/dev = 253:0
sys/class/block/dm-0/dm/suspended = %d
sys/class/block/dm-0/slaves/dm-2/dev = 253:2
sys/class/block/sdb1 -> ../../devices/pci/block/sdb/sdb1
sys/devices/pci/block/sdb/sdb1/dev = 8:17
sys/devices/pci/block/sdb/sdb1/partition = 1
sys/class/block/loop0/dev = 7:0
sys/fs/ext4/sdb1/errors_count = 3
sys/fs/ext4/loop0/errors_count = not a number
sys/dev/block/8:33 -> ../../devices/pci/block/sdc/sdc1
sys/class/block/sdc1 -> ../../devices/pci/block/sdc/sdc1
sys/devices/pci/block/sdc/sdc1/dev = 8:33
sys/devices/pci/block/sdc/sdc1/partition = 1
sys/class/block/sdc/device/state = transport-offline
sys/dev/block/8:48 -> ../../devices/pci/block/sdd
sys/class/block/sdd/dev = 8:48
sys/class/block/sdd/device/state = running
sys/dev/block/259:1 -> ../../devices/pci/block/nvme1n1
sys/class/block/nvme1n1/dev = 259:1
sys/class/block/nvme1n1/device/state = dead
`
	const gone = "the kernel has no block device with this number any more"
	for i, want := range []map[Number]Health{
		{{Major: 253, Minor: 2}: {}, {Major: 8, Minor: 17}: {Errors: 3}, {Major: 7}: {}, {Minor: 9}: {}, {Major: 31, Minor: 2}: {}},
		{{Major: 9, Minor: 9}: {Lost: gone}, {Major: 8, Minor: 48}: {},
			{Major: 8, Minor: 33}: {Lost: `the state of the disk "sdc" is "transport-offline"`}, {Major: 259, Minor: 1}: {Lost: `the state of the disk "nvme1n1" is "dead"`}},
		{{Major: 253, Minor: 2}: {Suspended: "dm-0"}, {Major: 8, Minor: 17}: {Errors: 3}},
	} {
		s := layOut(t, fmt.Sprintf(tree, i/2))
		for number, health := range want {
			if got := s.Health(number); got != health {
				t.Errorf("%v: %+v, want %+v", number, got, health)
			}
		}
	}
}

// TestHealthOfManyLayers has a device lie on more than are looked at.
func TestHealthOfManyLayers(t *testing.T) {
	t.Parallel()
	var tree strings.Builder
	tree.WriteString("sys/dev/block/253:0 -> ../../devices/virtual/block/dm-0\n")
	for i := range 2 * maxLayers {
		fmt.Fprintf(&tree, "sys/class/block/dm-%d/dm/suspended = 0\nsys/class/block/dm-%d/slaves/dm-%d/dev = 253:1\n", i, i, i+1)
	}
	fmt.Fprintf(&tree, "sys/class/block/dm-%d/dm/suspended = 1\n", 2*maxLayers)
	if got := layOut(t, tree.String()).Health(Number{Major: 253}); got != (Health{}) {
		t.Errorf("%+v, want that it ends", got)
	}
}

// TestHealthWithoutSysfs is that of a machine whose devices cannot be seen.
func TestHealthWithoutSysfs(t *testing.T) {
	t.Parallel()
	empty := layOut(t, "")
	for _, when := range []string{"no directory", "an empty directory"} {
		if got := empty.Health(Number{Major: 8}); got != (Health{}) {
			t.Errorf("%s: %+v, want nothing", when, got)
		}
		must(t, os.MkdirAll(filepath.Join(empty.Root, "sys/dev/block"), 0o700))
	}
}
