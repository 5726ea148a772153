// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
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
	// Errors is how many errors ext4 has noted in the file system since its last check. 0: it has none, or is of
	// another type.
	Errors uint64 `json:",omitempty"`
}

// maxLayers bounds the devices below a device that are read.
const maxLayers = 256

// Health reads the health of the device with the number that mounts show. It is the zero value if there is no such
// device, as with btrfs and ZFS.
func (s Sys) Health(n Number) Health {
	files := s.newSysfs()
	link, err := os.Readlink(files.pathAt("sys/dev/block/" + n.String()))
	if err != nil {
		return Health{}
	}
	name := path.Base(link)
	text, _ := readText(files.pathAt("sys/fs/ext4/" + name + "/errors_count"))
	errors, _ := strconv.ParseUint(text, 10, 64) // 0 if there is none
	return Health{files.suspendedBelow(name), errors}
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
