// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
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
	switch {
	case errors.Is(err, fs.ErrNotExist) && n.Major != 0 && n.Major != flashMajor && files.listsDevices():
		return Health{Lost: "the kernel has no block device with this number any more"}
	case err != nil:
		return Health{}
	}
	name := path.Base(link)
	text, _ := readText(files.pathAt("sys/fs/ext4/" + name + "/errors_count"))
	noted, _ := strconv.ParseUint(text, 10, 64) // 0 if there is none
	return Health{Suspended: files.suspendedBelow(name), Lost: files.deadState(name), Errors: noted}
}

// listsDevices reports whether block devices can be seen: a sandbox may leave out the directory of their numbers, or empty it.
func (s sysfs) listsDevices() bool {
	numbers, err := listNames(s.pathAt("sys/dev/block"))
	return err == nil && len(numbers) > 0
}

// deadState says that the disk of a device serves no request; empty: it does, as far as its state says.
func (s sysfs) deadState(name string) string {
	if d, err := s.readDevice(name); err == nil && d.Parent != "" {
		name = d.Parent
	}
	state, _ := s.readAttribute(name, "device/state") // most devices have none
	if !slices.Contains(deadStates, state) {
		return ""
	}
	return fmt.Sprintf("the state of the disk %q is %q", name, state)
}

// suspendedBelow is the first suspended device among this one and the devices below it.
func (s sysfs) suspendedBelow(name string) string {
	layers := []string{name}
	for i := 0; i < len(layers); i++ {
		if s.readNumber(layers[i], "dm/suspended") == 1 {
			return layers[i]
		}
		below, _ := listNames(s.attributePath(layers[i], "slaves"))
		if d, err := s.readDevice(layers[i]); err == nil && d.Parent != "" {
			below = append(below, d.Parent)
		}
		for _, one := range below {
			if len(layers) < maxLayers && !slices.Contains(layers, one) {
				layers = append(layers, one)
			}
		}
	}
	return ""
}
