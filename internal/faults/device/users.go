// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// Users says who uses the file system of a mount of the kubelet's namespace: its copies in every mount namespace, open files,
// working directories, roots, programs, mappings, loop devices, swap files, and overlays with a layer on it. It goes by the
// number of the file system, and reads /proc. It opens no file of that file system.
func (i *Inspector) Users(ctx context.Context, m mountinfo.Mount) (*Usage, error) {
	d, err := i.Finder.DeviceOf(m)
	if err != nil {
		return nil, fmt.Errorf("find users of mount at %q: %w", m.Point, err)
	}
	thorough, finder := *i, *i.Finder
	finder.WithProcesses, thorough.Finder = true, &finder
	inspection, usage, err := thorough.inspectWithTables(ctx, d)
	if err != nil {
		return nil, err
	}
	together := inspection.unmountedWith(usage, m)
	for n := range usage.HolderInfos {
		h := &usage.HolderInfos[n]
		switch h.Kind {
		case devholder.Mount, devholder.OverlayLayer, devholder.StackedDevice, devholder.Journal, devholder.RawOpen, devholder.DetachedMount:
			// None of these has a file by a mount of a namespace.
		case devholder.LoopDevice, devholder.Swap: // the kernel does not say by which mount it has the file
			h.Blocks = mountinfo.Within(m.Point, cmp.Or(h.File, h.Path))
		default:
			// The mount of a mapping may be unknown. The path that the process shows is a sign of it.
			h.Blocks = slices.Contains(together, h.Through.ID) || h.Kind == devholder.Mapping && h.Through.ID == 0 && mountinfo.Within(m.Point, h.Path)
		}
	}
	return usage, nil
}

// Blockers are the holders because of which the kernel refuses to unmount the mount that Users was asked about (EBUSY): those
// that have a file or directory by the mount itself, or by a copy that would be unmounted with it. A private copy in another
// namespace, and an overlay, are not among them.
func (c *Usage) Blockers() []HolderInfo {
	return slices.DeleteFunc(slices.Clone(c.HolderInfos), func(h HolderInfo) bool { return !h.Blocks })
}

// unmountedWith lists the mounts, by their numbers, that the kernel unmounts with m or not at all: m itself, and those on the
// same directory of each mount that receives from the parent of m.
func (n *inspection) unmountedWith(usage *Usage, m mountinfo.Mount) []int {
	together := []int{m.ID}
	parent, ok := n.table.ByID(m.Parent)
	below, under := mountinfo.Below(parent.Point, m.Point)
	if !ok || !under || parent.Shared == 0 {
		return together
	}
	place := path.Join(parent.Root, below)
	type copied struct {
		id     int
		parent mountinfo.Mount
	}
	var copies []copied
	for _, h := range usage.HolderInfos {
		if h.Kind != devholder.Mount || h.Mount.ID == m.ID {
			continue
		}
		table := n.table
		if !n.isHostMount(h.Holder) {
			var err error
			if table, err = n.namespaceTable(h.Mount.Namespace); err != nil {
				continue
			}
		}
		at, ok := table.ByID(h.Mount.ID)
		on, found := table.ByID(at.Parent)
		if below, under := mountinfo.Below(on.Point, at.Point); ok && found && under && path.Join(on.Root, below) == place {
			copies = append(copies, copied{at.ID, on})
		}
	}
	// A mount receives from its peers, and from the peers of its master.
	groups := []int{parent.Shared}
	for grown := true; grown; {
		grown = false
		for _, c := range copies {
			receives := slices.Contains(groups, c.parent.Shared) || slices.Contains(groups, c.parent.Master)
			if !receives || slices.Contains(together, c.id) {
				continue
			}
			together, grown = append(together, c.id), true
			if c.parent.Shared != 0 {
				groups = append(groups, c.parent.Shared)
			}
		}
	}
	return together
}

// anonymous reports whether it is a file system on no device.
func (c *Usage) anonymous() bool { return c.Device.Kind == blockdev.Anonymous }

// code is the code of a fault of it.
func (c *Usage) code() fault.Code {
	if c.anonymous() {
		return fault.HeldMount
	}
	return fault.HeldDevice
}

// Subject names the device or the file system.
func (c *Usage) Subject() string {
	if c.anonymous() {
		return c.Name()
	}
	return fmt.Sprintf("%s (%s)", c.Name(), c.Device.Number)
}

// Name is Subject without the number of a device.
func (c *Usage) Name() string {
	switch {
	case !c.anonymous():
		return "device " + c.Device.Node()
	case len(c.FileSystems) > 0:
		return c.FileSystems[0].Type + " file system " + c.Device.Number.String()
	}
	return "file system " + c.Device.Number.String()
}

// kernelOwn are types of file systems that the kernel fills by itself, as each container has them.
var kernelOwn = []string{"proc", "sysfs", "devpts", "devtmpfs", "mqueue", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs", "bpf", "nsfs"}

// mayKeep reports whether a mount of another namespace looks like a copy of one of the kubelet's that is in the kubelet's way: the place
// below its root is still there, and nothing is mounted on it. A copy of a volume whose directory has gone, or of one that is mounted
// again, is in no way. Its place is judged after that, by the directory that it lies on.
func (n *inspection) mayKeep(ctx context.Context, m mountns.Mount) bool {
	if slices.Contains(kernelOwn, m.FSType) {
		return false
	}
	place := ""
	for _, dir := range []string{n.node.PodsDir(), n.node.PluginsDir()} {
		if at := strings.Index(m.Point, dir+"/"); at >= 0 { // a container has the host's directories below one of its own
			place = m.Point[at:]
		}
	}
	_, isVolume := n.node.ParseVolume(place)
	_, isBind := n.node.ParseSubPath(place)
	on, known := n.table.On(place)
	if !isVolume && !isBind && path.Base(place) != "globalmount" || !known || on.Point == place || mountns.MayHang(on.FSType) {
		return false
	}
	return n.node.Do(ctx, func() error { // only the kubelet makes directories on the way there
		_, err := os.Lstat(place)
		return err
	}) == nil
}
