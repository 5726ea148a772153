// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/sys"
)

// mapperTargets asks the device mapper for the parts of a device, and waits no longer than a few seconds for it. An error: it is no mapped
// device, or the answer is not known.
func (s Sys) mapperTargets(name string) ([]sys.MapperTarget, error) {
	files := s.newSysfs()
	if !files.hasAttribute(name, "dm") || s.Root != "" && s.Mapper == nil {
		return nil, ErrNotFound
	}
	device, err := files.readDevice(name)
	if err != nil {
		return nil, err
	}
	if s.Mapper != nil {
		return s.Mapper(device.Number)
	}
	return callWithin(&deviceCalls, "mapper "+device.callKey(), func() ([]sys.MapperTarget, error) {
		return sys.MapperTargets(device.Major, device.Minor)
	})
}

// isRedundant reports whether a part of a mapped device can lose a device below it and still serve requests.
func isRedundant(t sys.MapperTarget) bool {
	return slices.Contains([]string{"multipath", "raid", "mirror"}, t.Type)
}

// firstReason is why requests to a mapped device fail by the state of one of its parts; empty: they do not, as far as that says.
func firstReason(name string, targets []sys.MapperTarget, reasonOf func(sys.MapperTarget) string) string {
	for _, t := range targets {
		reason := reasonOf(t)
		switch {
		case reason == "":
		case len(targets) == 1:
			return fmt.Sprintf("the mapped device %q %s", name, reason)
		default:
			return fmt.Sprintf("one of the %d parts of the mapped device %q %s", len(targets), name, reason)
		}
	}
	return ""
}

// pathState is a path in the state of a multipath device, active or failed.
var pathState = regexp.MustCompile(`\d+:\d+ ([AF]) `)

// lostTarget says why a part of a mapped device fails requests; empty: it does not.
func lostTarget(t sys.MapperTarget) string {
	fields := strings.Fields(t.Status)
	switch t.Type {
	case "error":
		return `answers each request with an error, as its table has the target "error"`
	case "multipath":
		paths := pathState.FindAllStringSubmatch(t.Status+" ", -1)
		if len(paths) > 0 && !slices.ContainsFunc(paths, func(p []string) bool { return p[1] == "A" }) {
			return fmt.Sprintf("has no path that works (%d failed): requests fail, or wait until one is back", len(paths))
		}
	case "raid": // its type, how many devices it has, and a letter for each
		if len(fields) > 2 && fields[2] != "" && strings.Trim(fields[2], "D") == "" {
			return "has no disk that works"
		}
	case "thin", "thin-pool", "cache", "era", "writecache", "snapshot", "snapshot-merge", "clone":
		if len(fields) > 0 && slices.Contains([]string{"Fail", "Error", "Invalid", "Overflow"}, fields[0]) {
			return fmt.Sprintf("has failed: the device mapper says %q of its target %q", fields[0], t.Type)
		}
	}
	return ""
}

// noWrites says why a part of a mapped device takes no writes to blocks that have none yet; empty: it does.
func noWrites(t sys.MapperTarget) string {
	fields := strings.Fields(t.Status)
	switch {
	case t.Type != "thin-pool":
	case slices.Contains(fields, "out_of_data_space"):
		return "is a thin pool that has no space left"
	case slices.Contains(fields, "ro"):
		return "is a thin pool that has become read-only"
	}
	return ""
}
