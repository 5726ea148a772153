// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"slices"
	"strings"
)

// idLength is the number of hexadecimal digits in the IDs of containers and sandboxes.
const idLength = 64

// ContainerID returns the ID of the container, or of the pod's sandbox, in which a process runs, from the text of
// /proc/PID/cgroup. If containers run in containers, it is the ID of the innermost. The runtime of a node that is a
// container itself, as with kind, then knows it.
//
// A process may give its own cgroups any name. If a decision rests on the ID, use Client.Owner.
func ContainerID(cgroup string) (id string, ok bool) {
	ids := ContainerIDs(cgroup)
	if len(ids) == 0 {
		return "", false
	}
	return ids[len(ids)-1], true
}

// ContainerIDs returns the IDs of all containers in which the process runs, the outermost first. It knows the names that
// docker, containerd and CRI-O choose, under both cgroup drivers, and takes the first hierarchy that has such names.
func ContainerIDs(cgroup string) []string {
	for line := range strings.Lines(cgroup) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) < 3 {
			continue
		}
		var ids []string
		for name := range strings.SplitSeq(strings.TrimSuffix(fields[2], " (deleted)"), "/") {
			if id, ok := idOf(name); ok && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		if len(ids) > 0 {
			return ids
		}
	}
	return nil
}

// idOf reads the name of one cgroup. cgroupfs: ID, or crio-ID. systemd: docker-ID.scope, cri-containerd-ID.scope,
// crio-ID.scope. A containerd without the systemd driver takes the name for systemd:
// SLICE:cri-containerd:ID. A process that monitors a container from outside, as in crio-conmon-ID.scope, is not in it.
func idOf(name string) (id string, ok bool) {
	name = strings.TrimSuffix(name, ".scope")
	if len(name) < idLength {
		return "", false
	}
	prefix, id := name[:len(name)-idLength], name[len(name)-idLength:]
	if strings.Trim(id, "0123456789abcdef") != "" {
		return "", false
	}
	switch {
	case prefix == "", prefix == "docker-", prefix == "cri-containerd-", prefix == "crio-", strings.HasSuffix(prefix, ":cri-containerd:"):
		return id, true
	}
	return "", false
}
