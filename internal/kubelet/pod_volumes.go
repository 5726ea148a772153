// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// devicesDir has the links of the raw block volumes, in the directory of a pod.
const devicesDir = "volumeDevices"

// maxVolumes bounds the entries of a directory of volumes that are read.
const maxVolumes = 4096

// LocalVolumePoint is the path at which the kubelet mounts, for the whole node, the file system of a local PersistentVolume
// that is a block device. It is empty if the name cannot be a path.
func (n *Node) LocalVolumePoint(persistentVolume string) string {
	if !isPathComponent(persistentVolume) {
		return ""
	}
	return path.Join(n.PluginsDir(), "kubernetes.io/local-volume/mounts", persistentVolume)
}

// PodVolumes lists the volumes of a pod for which the kubelet has a directory, or a link for a raw block volume. It is
// called inside the kubelet's namespace, and calls no file system that may hang. A node that is ReadOnce lists those of a pod
// once, after its table was read. The caller does not change the list.
func (n *Node) PodVolumes(podUID string) ([]Volume, error) {
	if n.readTable() == nil {
		return n.listVolumes(podUID)
	}
	n.tables.mu.Lock()
	known, listed := n.tables.volumes[podUID]
	n.tables.mu.Unlock()
	if listed {
		return known, nil
	}
	all, err := n.listVolumes(podUID)
	if err != nil {
		return nil, err
	}
	n.tables.mu.Lock()
	defer n.tables.mu.Unlock()
	if n.tables.volumes == nil {
		n.tables.volumes = map[string][]Volume{}
	}
	n.tables.volumes[podUID] = all
	return all, nil
}

// listVolumes is PodVolumes as the kubelet's directories have them now.
func (n *Node) listVolumes(podUID string) ([]Volume, error) {
	kinds, err := listLocal(n.PodDir(podUID))
	if err != nil {
		return nil, fmt.Errorf("list volumes of pod with UID %q: %w", podUID, err)
	}
	var all []Volume
	for _, kind := range []string{volumesDir, devicesDir} {
		if !slices.Contains(kinds, kind) {
			continue
		}
		dir := path.Join(n.PodDir(podUID), kind)
		plugins, err := listLocal(dir)
		if err != nil {
			return nil, fmt.Errorf("list volumes of pod with UID %q: %w", podUID, err)
		}
		for _, plugin := range plugins {
			names, err := listLocal(path.Join(dir, plugin))
			if err != nil {
				return nil, fmt.Errorf("list volumes of pod with UID %q: %w", podUID, err)
			}
			for _, name := range names {
				all = append(all, Volume{PodUID: podUID, Plugin: PluginOf(plugin), Name: name, Block: kind == devicesDir})
			}
		}
	}
	return all, nil
}

// Symlink returns the path that a symbolic link leads to, clean. It is empty if there is no link. No link on the way is followed, and nothing is
// mounted at the path: some drivers make a link to a mount of their own in the place of a volume.
func Symlink(point string) string {
	fd, err := mountns.View{}.Lookup(point)
	if err == nil {
		_ = fd.Close() // nothing was written
	}
	if !errors.Is(err, sys.ELOOP) {
		return ""
	}
	dir, err := mountns.View{}.Lookup(path.Dir(point))
	if err != nil {
		return ""
	}
	defer dir.Close()
	to, err := dir.ReadlinkAt(path.Base(point))
	switch {
	case err != nil:
		return ""
	case path.IsAbs(to):
		return path.Clean(to)
	}
	return path.Join(path.Dir(point), to)
}

// listLocal lists a directory. A missing directory has no entries. The error is ErrMayBlock on a file system that may hang.
func listLocal(name string) ([]string, error) {
	dir, err := mountns.View{}.Lookup(name)
	if errors.Is(err, sys.ENOENT) || errors.Is(err, sys.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	st, err := dir.Stat(sys.StatType)
	if err == nil && (st.MountRoot || !st.RootKnown) { // any other directory lies on a file system that is on the way to it
		err = mountns.View{}.NotHanging(name, dir)
	}
	if err != nil {
		return nil, err
	}
	names, _, err := sys.ListDir(dir, maxVolumes)
	if errors.Is(err, sys.ENOTDIR) {
		return nil, nil
	}
	return names, err
}
