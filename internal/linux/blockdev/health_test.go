// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"fmt"
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
`
	for suspended, want := range []map[Number]Health{
		{{Major: 253, Minor: 2}: {}, {Major: 8, Minor: 17}: {Errors: 3}, {Major: 7}: {}, {Major: 9, Minor: 9}: {}},
		{{Major: 253, Minor: 2}: {Suspended: "dm-0"}, {Major: 8, Minor: 17}: {Errors: 3}},
	} {
		s := layOut(t, fmt.Sprintf(tree, suspended))
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
