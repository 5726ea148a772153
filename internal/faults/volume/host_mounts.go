// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

// hostMounts are the mounts of the kubelet's namespace, as they were when an inspection began.
type hostMounts struct {
	node          *kubelet.Node
	namespace     mountns.Namespace
	table         *mountinfo.Table
	visibleMounts map[string]mountinfo.Mount // by point: those below the directories of pods and plugins
	shownDevices  map[device]bool            // the file systems that a mount shows
}

func readHostMounts(ctx context.Context, k kubelet.Locator) (*hostMounts, error) {
	node, err := k.Node(ctx)
	if err != nil {
		return nil, err
	}
	host, table, err := node.OwnedMounts()
	if err != nil {
		return nil, err
	}
	mounts := table.Mounts()
	h := &hostMounts{
		node: node, namespace: host, table: table,
		visibleMounts: make(map[string]mountinfo.Mount, len(mounts)), shownDevices: make(map[device]bool, len(mounts)),
	}
	// The top mount at a point below the kubelet's directories is visible, and the mounts under it are covered. A mount that
	// covers a directory above is left to the prober, which asks only the mount that is meant.
	covered := map[int]bool{}
	for i := range mounts {
		if parent, ok := table.ByID(mounts[i].Parent); ok && parent.Point == mounts[i].Point {
			covered[parent.ID] = true
		}
	}
	pods, plugins := node.PodsDir(), node.PluginsDir()
	for i := range mounts {
		m := &mounts[i]
		if covered[m.ID] {
			continue
		}
		h.shownDevices[deviceOf(*m)] = true
		if mountinfo.Within(pods, m.Point) || mountinfo.Within(plugins, m.Point) {
			h.visibleMounts[m.Point] = *m
		}
	}
	return h, nil
}

// judgeOwnDisks notes the file systems that the kubelet's own directories are on, if the kernel says that they do not serve. Each volume that is a
// directory there, such as an emptyDir, is no mount that could be asked, and fails with them.
func (h *hostMounts) judgeOwnDisks(unknown *mountstate.Unknown) {
	for _, dir := range []string{h.node.PodsDir(), h.node.PluginsDir()} {
		m, ok := h.table.On(dir)
		if !ok {
			continue
		}
		disk := deviceHealth(m)
		v := judgeMount(probe.Answer{State: probe.Alive}, false, m, disk) // a directory there was read
		if reason := cmp.Or(v.Reason(), v.UnknownReason, readOnlyReason(m, disk), noWritesReason(disk)); reason != "" {
			unknown.AddPlace(mountstate.Place{Point: m.Point, Reason: "the kubelet's own directories are there, and with them each volume that is no mount: " + reason})
		}
	}
}

// withNamespace is a mount of the table with its namespace.
func (h *hostMounts) withNamespace(m mountinfo.Mount) mountns.Mount {
	return mountns.Mount{Mount: m, Unique: h.node.UniqueID(m.ID), Namespace: h.namespace}
}

// mountStack lists the mounts at the point of m that lead up to it, the lowest first.
func (h *hostMounts) mountStack(m mountinfo.Mount) []mountinfo.Mount {
	stack := []mountinfo.Mount{m}
	for at := m; len(stack) < len(h.table.Mounts()); {
		below, ok := h.table.ByID(at.Parent)
		if !ok || below.Point != m.Point || m.Point == "" {
			break
		}
		at, stack = below, append(stack, below)
	}
	slices.Reverse(stack)
	return stack
}

// maxFollowed bounds the symbolic links that are followed in one path.
const maxFollowed = 40

// resolveLinks follows the symbolic links on the way of a path, up to the first mount that may hang: that is not asked. It is called inside the kubelet's
// namespace.
func (h *hostMounts) resolveLinks(name string) string {
	fd, err := mountns.View{}.Lookup(name)
	if err == nil {
		_ = fd.Close() // nothing was written
	}
	if !errors.Is(err, sys.ELOOP) {
		return name
	}
	links := 0
	for at := 1; at < len(name); {
		end := len(name)
		if n := strings.IndexByte(name[at:], '/'); n >= 0 {
			end = at + n
		}
		if top, ok := h.table.Top(name[:end]); ok && mountns.MayHang(top.FSType) {
			return name
		}
		if to := kubelet.Symlink(name[:end]); to != "" {
			if links++; links > maxFollowed {
				return name
			}
			name, at = path.Join(to, name[end:]), 1
			continue
		}
		at = end + 1
	}
	return name
}

// coverOf names the directory of the node that a mount below the kubelet's directories is, and the file system that was mounted on this directory
// since. It is empty if none was, or if another mount of the node shows the directory still.
func (h *hostMounts) coverOf(m mountinfo.Mount) (covered string) {
	if m.Deleted() {
		return ""
	}
	for _, at := range h.table.OfDevice(m.Major, m.Minor) {
		below, ok := mountinfo.Below(unmarkedRoot(at), unmarkedRoot(m))
		name := path.Join(at.Point, below)
		if !ok || at.Deleted() || mountinfo.Within(h.node.PodsDir(), at.Point) || mountinfo.Within(h.node.PluginsDir(), at.Point) {
			continue
		}
		top, ok := h.table.Top(name)
		if !ok || deviceOf(top) == deviceOf(m) {
			return ""
		}
		covered = fmt.Sprintf("%q, where device %s (%s) is mounted now", name, deviceOf(top), top.FSType)
	}
	return covered
}

// locateInStaged finds the way from the staged mount to the volume's directory, from the root that the volume's mount
// has: in the file system that is staged, or in the one below it, if that was bound before the volume was mounted.
func (h *hostMounts) locateInStaged(volume *Volume, staged mountns.Mount, point string) Location {
	if volume.Mount.ID == 0 {
		return Location{Reason: fmt.Sprintf("nothing is mounted at %q, so the directory of the volume that belongs there is unknown",
			volume.Point)}
	}
	root, stagedRoot := unmarkedRoot(volume.Mount.Mount), unmarkedRoot(staged.Mount)
	// The directory that the lowest of the mounts at the staging path covers, and the device it is on.
	lowest := h.mountStack(staged.Mount)[0]
	on, covers := h.table.ByID(lowest.Parent)
	way, leads := mountinfo.Below(on.Point, lowest.Point)
	disk, dir := deviceOf(on), path.Join(unmarkedRoot(on), way)
	covers = covers && leads && disk != deviceOf(lowest)
	if covers && deviceOf(volume.Mount.Mount) == disk {
		if below, ok := mountinfo.Below(dir, root); ok {
			return Location{Known: true, Below: below, OnNodeDisk: true, Major: disk.major, Minor: disk.minor, Covered: path.Join(dir, below)}
		}
	}
	below, ok := mountinfo.Below(stagedRoot, root)
	if !ok {
		return Location{Reason: fmt.Sprintf("the mount has directory %q of its file system, which is not in directory %q that is "+
			"staged at %q", root, stagedRoot, point)}
	}
	at := Location{Known: true, Below: below}
	if covers {
		at.Major, at.Minor, at.Covered = disk.major, disk.minor, path.Join(dir, below)
	}
	return at
}
