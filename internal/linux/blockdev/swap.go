// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"path"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

// swapArea is a swap area as /proc/swaps lists it.
type swapArea struct {
	path   string // as seen from our root, or from its own namespace's
	isFile bool   // a file, not a device
}

// parseSwaps reads /proc/swaps: a heading, then one area a line, its path and
// its type first.
func parseSwaps(text string) []swapArea {
	var areas []swapArea
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[1] != "file" && fields[1] != "partition" {
			continue
		}
		name := strings.TrimSuffix(mountinfo.Unescape(fields[0]), " (deleted)")
		areas = append(areas, swapArea{path: name, isFile: fields[1] == "file"})
	}
	return areas
}

// swapOn finds which of the devices an area is on, or, for a file, lies on.
func (s sysfs) swapOn(area swapArea, devices []Device) (Device, bool) {
	st, err := callWithin(&pathCalls, area.path, func() (sys.Stat, error) { return sys.StatPath(area.path, sys.StatType) })
	for _, device := range devices {
		switch {
		case area.isFile:
			if err == nil && (Number{st.Major, st.Minor}) == device.Number {
				return device, true
			}
		case err == nil && st.IsBlockDevice():
			if (Number{st.RdevMajor, st.RdevMinor}) == device.Number {
				return device, true
			}
		default: // the node is in another namespace, or gone: its name is all there is
			mapped, err := s.readAttribute(device.Name, "dm/name")
			if area.path == device.Node() || err == nil && area.path == path.Join("/dev/mapper", mapped) {
				return device, true
			}
		}
	}
	return Device{}, false
}
