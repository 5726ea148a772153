// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
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
sys/dev/block/259:2 -> ../../devices/pci/block/nvme2n1
sys/class/block/nvme2n1/dev = 259:2
sys/class/block/nvme2n1/ro = 1
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
		{{Major: 9, Minor: 9}: {Lost: gone}, {Major: 8, Minor: 48}: {}, {Major: 259, Minor: 2}: {ReadOnly: true},
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

// TestHealthOfMappedDevices has the device mapper say of a device, or of one below it, that it fails.
func TestHealthOfMappedDevices(t *testing.T) {
	t.Parallel()
	const tree = `
sys/dev/block/253:1 -> ../../devices/virtual/block/dm-1
sys/class/block/dm-1/dev = 253:1
sys/class/block/dm-1/size = 8
sys/class/block/dm-1/dm/suspended = 0
sys/class/block/dm-1/slaves/dm-0/dev = 253:0
sys/class/block/dm-0/dev = 253:0
sys/class/block/dm-0/size = 8
sys/class/block/dm-0/dm/suspended = 0
sys/class/block/dm-0/slaves/sda/dev = 8:0
sys/class/block/dm-0/slaves/sdb/dev = 8:16
sys/class/block/sda/dev = 8:0
sys/class/block/sda/size = 8
sys/class/block/sda/device/state = offline
sys/class/block/sdb/dev = 8:16
sys/class/block/sdb/size = 8
`
	linear := sys.MapperTarget{Type: "linear"}
	path := func(states ...string) sys.MapperTarget {
		text := "2 0 0 0 1 1 E 0 2 0"
		for i, state := range states {
			text += fmt.Sprintf(" 8:%d %s 3", 16*i, state)
		}
		return sys.MapperTarget{Type: "multipath", Status: text + " "}
	}
	for name, c := range map[string]struct {
		below, top []sys.MapperTarget
		want       Health
	}{
		"a disk that all requests go to is lost": {below: []sys.MapperTarget{linear, linear}, top: []sys.MapperTarget{linear}, want: Health{Lost: `the state of the disk "sda" is "offline"`}},
		"a path is left":                         {below: []sys.MapperTarget{path("F", "A")}, top: []sys.MapperTarget{linear}},
		"a disk of a mirror is left":             {below: []sys.MapperTarget{{Type: "raid", Status: "raid1 2 DA 8/8 idle 0 0 -"}}, top: []sys.MapperTarget{linear}},
		"all disks are lost": {
			below: []sys.MapperTarget{{Type: "raid", Status: "raid1 2 DD 8/8 idle 0 0 -"}}, top: []sys.MapperTarget{linear},
			want: Health{Lost: `the mapped device "dm-0" has no disk that works`},
		},
		"no path is left": {
			below: []sys.MapperTarget{path("F", "F")}, top: []sys.MapperTarget{linear},
			want: Health{Lost: `the mapped device "dm-0" has no path that works (2 failed): requests fail, or wait until one is back`},
		},
		"errors alone": {
			below: []sys.MapperTarget{path("A", "A")}, top: []sys.MapperTarget{{Type: "error"}},
			want: Health{Lost: `the mapped device "dm-1" answers each request with an error, as its table has the target "error"`},
		},
		"errors in a part": {
			below: []sys.MapperTarget{path("A", "A")}, top: []sys.MapperTarget{linear, {Type: "error"}},
			want: Health{Lost: `one of the 2 parts of the mapped device "dm-1" answers each request with an error, as its table has the target "error"`},
		},
		"a thin volume that failed": {
			below: []sys.MapperTarget{path("A", "A")}, top: []sys.MapperTarget{{Type: "thin", Status: "Fail"}},
			want: Health{Lost: `the mapped device "dm-1" has failed: the device mapper says "Fail" of its target "thin"`},
		},
		"a thin volume":  {below: []sys.MapperTarget{{Type: "raid"}}, top: []sys.MapperTarget{{Type: "thin", Status: "2048 16383"}}},
		"a pool is fine": {below: []sys.MapperTarget{{Type: "raid"}}, top: []sys.MapperTarget{{Type: "thin-pool", Status: "1 14/4161 26/128 - rw discard_passdown queue_if_no_space - 1024 "}}},
		"a pool is full": {
			below: []sys.MapperTarget{{Type: "raid"}}, top: []sys.MapperTarget{{Type: "thin-pool", Status: "1 14/4161 128/128 - out_of_data_space discard_passdown error_if_no_space - 1024 "}},
			want: Health{NoWrites: `the mapped device "dm-1" is a thin pool that has no space left`},
		},
		"a pool is read-only": {
			below: []sys.MapperTarget{{Type: "raid"}}, top: []sys.MapperTarget{{Type: "thin-pool", Status: "1 14/4161 26/128 - ro discard_passdown queue_if_no_space needs_check 1024 "}},
			want: Health{NoWrites: `the mapped device "dm-1" is a thin pool that has become read-only`},
		},
		"an invalid snapshot": {
			below: []sys.MapperTarget{{Type: "snapshot", Status: "Invalid"}}, top: []sys.MapperTarget{linear},
			want: Health{Lost: `the mapped device "dm-0" has failed: the device mapper says "Invalid" of its target "snapshot"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := layOut(t, tree)
			s.Mapper = func(n Number) ([]sys.MapperTarget, error) {
				if n.Minor == 0 {
					return c.below, nil
				}
				return c.top, nil
			}
			if got := s.Health(Number{Major: 253, Minor: 1}); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
	// Without the device mapper's word it is not known which of two disks a device needs.
	if got := layOut(t, tree).Health(Number{Major: 253, Minor: 1}); got != (Health{}) {
		t.Errorf("%+v, want nothing", got)
	}
	if got := layOut(t, strings.ReplaceAll(tree, "dm-1/size = 8", "dm-1/size = 0")).Health(Number{Major: 253, Minor: 1}); !strings.Contains(got.Lost, "has no size") {
		t.Errorf("%+v, want that it is lost", got)
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
