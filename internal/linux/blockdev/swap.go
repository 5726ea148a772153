// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"path"
	"strings"

	"kubediag.org/kubediag/internal/linux/sys"
)

// area is a swap area as /proc/swaps lists it.
type area struct {
	path string // as seen from our root, or from its own namespace's
	file bool   // a file, not a device
}

// unescape undoes what /proc/swaps escapes in a path.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// parseSwaps reads /proc/swaps: a heading, then one area a line, its path and
// its type first.
func parseSwaps(text string) []area {
	var areas []area
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[1] != "file" && fields[1] != "partition" {
			continue
		}
		name := strings.TrimSuffix(unescape.Replace(fields[0]), " (deleted)")
		areas = append(areas, area{path: name, file: fields[1] == "file"})
	}
	return areas
}

// swapOn finds which of the devices an area is on, or, for a file, lies on.
func (u uses) swapOn(a area, devices []Device) (Device, bool) {
	st, err := within(&paths, a.path, func() (sys.Stat, error) { return sys.StatPath(a.path, sys.StatType) })
	for _, d := range devices {
		switch {
		case a.file:
			if err == nil && (Number{st.Major, st.Minor}) == d.Number {
				return d, true
			}
		case err == nil && st.IsBlockDevice():
			if (Number{st.RdevMajor, st.RdevMinor}) == d.Number {
				return d, true
			}
		case u.calls(d, a.path):
			// The node is in another namespace, or gone: its name is all there is.
			return d, true
		}
	}
	return Device{}, false
}

// calls reports whether a node of that path is called as the device's is.
func (u uses) calls(d Device, node string) bool {
	if node == d.Node() {
		return true
	}
	name, err := u.read(d.Name, "dm/name")
	return err == nil && node == path.Join("/dev/mapper", name)
}
