// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// ContainerMount is a mount that the container runtime has made in a running container: its record, and the mount tables of the kubelet and of
// the container there.
type ContainerMount struct {
	Container string `json:"container"`
	// ID is that of the container.
	ID string `json:"id"`
	// From is the path of the kubelet, and Point that in the container. The image may have a symbolic link on the way to it.
	From  string `json:"from"`
	Point string `json:"point"`
	// Link is the path that From leads to, if a driver has made a symbolic link there.
	Link string `json:"link,omitempty"`
	// Wants is the directory of a file system that From is; the zero value for a path that is neither in the directory of the pod nor a mount of the
	// node.
	Wants Directory `json:"wants,omitzero"`
	// Has is the directory that the container sees at its point; the zero value if nothing is mounted there.
	Has Directory `json:"has,omitzero"`
	// Covered is whether a mount is at the point, and no path leads to it: another one lies on it, or on the way there.
	Covered bool `json:"covered,omitempty"`
	// Elsewhere is whether the container has the wanted directory at another point alone.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// Deleted is whether From is a directory of the kubelet that no mount is at, and the container has one there that was deleted.
	Deleted bool `json:"deleted,omitempty"`
}

// Directory is one of a file system.
type Directory struct {
	Device string `json:"device"`
	Path   string `json:"path"`
}

// directoryOf is the root of a mount, or the directory below it on that way.
func directoryOf(m *mountinfo.Mount, below string) Directory {
	root, _ := mountinfo.Deleted(m.Root)
	return Directory{fmt.Sprintf("%d:%d", m.Major, m.Minor), path.Join(root, below)}
}

// CompareContainer completes the records of a container of a pod by the kubelet's table and by the container's. It reports false if the latter is not
// known to be the container's: its process has another root, or another mount namespace. Then no record has its wanted directory.
func CompareContainer(host, own *mountinfo.Table, podDir string, records []ContainerMount) bool {
	for i := range records {
		m := &records[i]
		top, visible := own.Top(m.Point)
		if visible {
			m.Has = directoryOf(&top, "")
		}
		layers := own.All(m.Point)
		m.Covered = len(layers) > 0 && !visible
		from := cmp.Or(m.Link, m.From)
		on, ok := host.On(from)
		if !mountinfo.Within(podDir, m.From) {
			m.compareNode(host, layers)
			continue
		}
		if !ok {
			continue
		}
		below, _ := mountinfo.Below(on.Point, from)
		m.Wants = directoryOf(&on, below)
		m.Deleted = visible && top.Deleted() && on.Point != from && mountinfo.Within(path.Join(podDir, "volumes"), m.From)
		shows := func(at mountinfo.Mount) bool { return directoryOf(&at, "") == m.Wants }
		m.Covered = m.Covered || m.Has.Device != m.Wants.Device && slices.ContainsFunc(layers, shows)
		place := m.From[len(path.Dir(podDir)):] // that of the kubelet, as a container with the node's root directory has it, too
		m.Elsewhere = len(layers) == 0 && slices.ContainsFunc(own.OfDevice(on.Major, on.Minor), func(at mountinfo.Mount) bool {
			return shows(at) && !strings.HasSuffix(at.Point, place) && !slices.ContainsFunc(records, func(of ContainerMount) bool { return of.Point == at.Point })
		})
	}
	return slices.ContainsFunc(records, func(m ContainerMount) bool {
		return m.Has == m.Wants && m.Has != Directory{} && mountinfo.Within(podDir, m.From)
	})
}

// compareNode completes the record of a path of the node, if that is the point of a mount: no link leads to such a path. If a file system was
// mounted there after the start of the container, that has the directory beneath, and writes to another disk. The first access to an automounter
// mounts one there, which is no fault.
func (m *ContainerMount) compareNode(host *mountinfo.Table, layers []mountinfo.Mount) {
	top, visible := host.Top(m.From)
	automounted := slices.ContainsFunc(host.All(m.From), func(at mountinfo.Mount) bool { return at.FSType == "autofs" })
	if !visible || automounted || len(layers) == 0 { // the image may have a link on the way
		return
	}
	m.Wants = directoryOf(&top, "")
	m.Covered = m.Covered || m.Has.Device != m.Wants.Device && slices.ContainsFunc(layers, func(at mountinfo.Mount) bool { return directoryOf(&at, "") == m.Wants })
}
