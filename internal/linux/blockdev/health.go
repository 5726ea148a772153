// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
)

// Health holds the kernel's facts about a device with a file system. The device itself gets no request, so nothing
// waits for it.
type Health struct {
	// Suspended is a mapped device that is suspended, so that its requests wait: the device, or another below it.
	// Empty: no device is.
	Suspended string `json:",omitempty"`
	// Lost says in words that the kernel has no such device any more, or serves no request to it. Empty: it is there.
	Lost string `json:",omitempty"`
	// NoWrites says in words that the device, or another below it, has no place for blocks that are written for the first time. Empty: it has.
	NoWrites string `json:",omitempty"`
	// ReadOnly is whether the kernel refuses all writes to the device.
	ReadOnly bool `json:",omitempty"`
	// Errors is how many errors ext4 has noted in the file system since its last check. 0: it has none, or is of
	// another type.
	Errors uint64 `json:",omitempty"`
}

// maxLayers bounds the devices below a device that are read.
const maxLayers = 256

// flashMajor is the number of file systems on flash without a block device, such as JFFS2.
const flashMajor = 31

// deadStates are the states of disks of SCSI and NVMe to which every request fails.
var deadStates = []string{"offline", "transport-offline", "cancel", "deleted", "dead", "deleting", "deleting (no IO)"}

// Health reads the health of the device with the number that mounts show. Those of btrfs and ZFS have major 0, and no
// device has that.
func (s Sys) Health(n Number) Health {
	files := s.newSysfs()
	link, err := os.Readlink(files.pathAt("sys/dev/block/" + n.String()))
	if errors.Is(err, fs.ErrNotExist) && n.Major != 0 && n.Major != flashMajor {
		// A sandbox may leave out the directory of the numbers, or empty it: then nothing is known.
		if numbers, err := listNames(files.pathAt("sys/dev/block")); err == nil && len(numbers) > 0 {
			return Health{Lost: "the kernel has no block device with this number any more"}
		}
	}
	if err != nil {
		return Health{}
	}
	name := path.Base(link)
	text, _ := readText(files.pathAt("sys/fs/ext4/" + name + "/errors_count"))
	noted, _ := strconv.ParseUint(text, 10, 64) // 0 if there is none
	h := Health{Errors: noted, ReadOnly: files.readNumber(name, "ro") == 1}
	s.addBelow(&h, files, name)
	return h
}

// addBelow adds the states of a device and of the devices below it: the first that is suspended, and why a device that has to serve
// requests does not. If a device has several copies of its data below it, no single one of them has to.
func (s Sys) addBelow(h *Health, files sysfs, name string) {
	type layer struct {
		name   string
		needed bool
	}
	layers := []layer{{name, true}}
	for i := 0; i < len(layers); i++ {
		at := layers[i]
		if h.Suspended == "" && files.readNumber(at.name, "dm/suspended") == 1 {
			h.Suspended = at.name
		}
		below, _ := listNames(files.attributePath(at.name, "slaves"))
		needsAll := len(below) == 1
		if at.needed {
			h.Lost = cmp.Or(h.Lost, files.deadState(at.name))
			if targets, err := s.mapperTargets(at.name); err == nil {
				needsAll = !slices.ContainsFunc(targets, isRedundant)
				h.Lost, h.NoWrites = cmp.Or(h.Lost, firstReason(at.name, targets, lostTarget)), cmp.Or(h.NoWrites, firstReason(at.name, targets, noWrites))
			}
		}
		if d, err := files.readDevice(at.name); err == nil && d.Parent != "" {
			below, needsAll = append(below, d.Parent), true
		}
		for _, one := range below {
			if len(layers) < maxLayers && !slices.ContainsFunc(layers, func(l layer) bool { return l.name == one }) {
				layers = append(layers, layer{one, at.needed && needsAll})
			}
		}
	}
}

// deadState says that a device serves no request; empty: it does, as far as sysfs says.
func (s sysfs) deadState(name string) string {
	if state, _ := s.readAttribute(name, "device/state"); slices.Contains(deadStates, state) { // most devices have none
		return fmt.Sprintf("the state of the disk %q is %q", name, state)
	}
	if state, _ := s.readAttribute(name, "md/array_state"); state == "broken" {
		return fmt.Sprintf("the array %q has lost a disk that it needs", name)
	}
	if size, err := s.readAttribute(name, "size"); err == nil && size == "0" {
		return fmt.Sprintf("the disk %q has no size any more: its medium or its server is gone", name)
	}
	return ""
}
