// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"
	"os"
	"path"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// volume is the directory of a volume, opened. The function that opened it closes it.
type volume struct {
	dir *sys.FD
	// path leads to it and has no link in it; asked is how the pod's spec names it, empty if it does not.
	path, asked string
	// plugin is the directory of the volume's plugin in that of the pod, such as kubernetes.io~csi. Empty for a hostPath.
	plugin string
	// at is its state. It may be the root of a mount.
	at sys.Stat
}

var errNoVolume = errors.New("directory of volume not known")

// csi is the directory of all volumes of CSI drivers, which have one more directory in between.
const csi = "kubernetes.io~csi"

// atomic are the plugins that write with the kubelet's atomic writer.
var atomic = []string{"kubernetes.io~configmap", "kubernetes.io~secret", "kubernetes.io~projected", "kubernetes.io~downward-api"}

// openVolume opens the directory that the subPath is in: as the pod's spec or, if that does not name it, as the
// kubelet's directories have it.
func (s target) openVolume() (v volume, err error) {
	switch {
	case s.want.Volume.HostPath != nil:
		v.asked = s.want.Volume.HostPath.Path
		v.dir, v.path, err = mountns.LookupFollowing(v.asked)
	case podinfo.KubeletPlugin(s.want.Volume) != "":
		v.plugin = strings.ReplaceAll(podinfo.KubeletPlugin(s.want.Volume), "/", "~")
		v.path = s.node.VolumeDir(s.place.PodUID, v.plugin, s.want.Volume.Name)
		v.dir, err = mountns.Lookup(0, v.path)
	default:
		v, err = s.searchVolume()
	}
	if err != nil {
		return volume{}, err
	}
	v.at, err = v.dir.Stat(sys.StatType)
	if err == nil && !v.at.IsDir() {
		err = sys.ENOTDIR
	}
	if err != nil {
		v.dir.Close()
		return volume{}, err
	}
	return v, nil
}

// searchVolume finds the one plugin that has a volume of the name that the kubelet bound it under. A PersistentVolume
// of type hostPath has no such directory.
func (s target) searchVolume() (volume, error) {
	volumes := path.Dir(path.Dir(s.node.VolumeDir(s.place.PodUID, "any", s.place.Volume)))
	plugins, err := listLocal(volumes)
	if err != nil {
		return volume{}, err
	}
	var found []volume
	for _, plugin := range plugins {
		v := volume{plugin: plugin, path: path.Join(volumes, plugin, s.place.Volume)}
		if plugin == csi {
			v.path += "/mount"
		}
		if v.dir, err = mountns.Lookup(0, v.path); err == nil {
			found = append(found, v)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	for _, v := range found {
		v.dir.Close()
	}
	return volume{}, errNoVolume
}

// listLocal lists a directory of a file system that does not hang.
func listLocal(dir string) ([]string, error) {
	fd, err := mountns.Lookup(0, dir)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	if mountns.NotHanging(dir, fd) != nil {
		return nil, errNoVolume
	}
	entries, err := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// local reports whether the volume lies on a local file system: that of the bind st, whose root is bound, or another.
func (v volume) local(bound sys.Stat, st mount.State) bool {
	if v.at.Major == bound.Major && v.at.Minor == bound.Minor {
		return local(st.FSType)
	}
	return v.onLocal()
}

// onLocal reports whether the volume's directory lies on a local file system.
func (v volume) onLocal() bool {
	kind, err := mountns.FSType(v.dir)
	return err == nil && local(kind)
}

// writtenAnew reports whether the volume is one that the kubelet's atomic writer, or that of a CSI driver, has written.
func (v volume) writtenAnew() bool {
	if v.plugin != csi && !slices.Contains(atomic, v.plugin) {
		return false
	}
	data, err := mountns.Lookup(0, v.path+"/..data")
	data.Close()
	return errors.Is(err, sys.ELOOP)
}

// written is the name in a volume of what is bound: in a volume of the kubelet's atomic writer, what follows the
// directory of a version. Empty for all others, and where st is not from this volume.
func (v volume) written(uid string, st mount.State) string {
	if !slices.Contains(atomic, v.plugin) {
		return ""
	}
	root, _ := mountinfo.Deleted(st.Root)
	rest, onDisk := cutLast(root, "/"+path.Join(uid, "volumes", v.plugin, path.Base(v.path))+"/")
	if !onDisk {
		// The volume has a file system of its own.
		rest = strings.TrimPrefix(root, "/")
	}
	version, name, _ := strings.Cut(rest, "/")
	if !strings.HasPrefix(version, "..") || version == ".." {
		return ""
	}
	return name
}

// cutLast returns what follows the last sep in s.
func cutLast(s, sep string) (after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", false
	}
	return s[i+len(sep):], true
}
