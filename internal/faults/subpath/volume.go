// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// openedVolume is the directory of a volume, opened. The function that opened it closes it.
type openedVolume struct {
	dir  *sys.FD
	view mountns.View // of the namespace that it was opened in
	// path leads to it and has no link in it; asked is how the pod's spec names it, empty if it does not.
	path, specPath string
	// plugin is the kubelet's for the volume, such as kubernetes.io/csi; empty for a hostPath.
	plugin string
	// state is its state. It may be the root of a mount.
	state sys.Stat
	// kept is whether a survey closes the directory.
	kept bool
}

// close closes the directory of a volume that was opened for one bind.
func (v openedVolume) close() {
	if !v.kept {
		v.dir.Close()
	}
}

// surveyVolumes are the volumes of one survey. In the mount table, the binds of a volume lie side by side: the last volume stays open for them.
type surveyVolumes struct {
	found map[podVolume]openedVolume // those that were searched for, without descriptors
	key   podVolume
	last  openedVolume
}

// close closes the last volume.
func (k *surveyVolumes) close() {
	k.last.dir.Close()
	k.last = openedVolume{}
}

var errNoVolume = errors.New("directory of volume not known")

// openVolume opens the directory that the subPath is in: as the pod's spec or, if that does not name it, as the
// kubelet's directories have it. In a survey that may be the last one, still open. The caller calls its method close.
func (s target) openVolume() (openedVolume, error) {
	kept := s.volumes
	if kept == nil {
		return s.openNow()
	}
	key := podVolume{s.place.PodUID, s.place.Volume, s.expected.Volume.Name}
	if kept.last.dir != nil && kept.key == key {
		return kept.last, nil
	}
	kept.close()
	volume, err := s.openNow()
	if err == nil {
		volume.kept = true
		kept.key, kept.last = key, volume
	}
	return volume, err
}

// openNow is openVolume without those of a survey.
func (s target) openNow() (volume openedVolume, err error) {
	volume.view = s.node.View()
	switch {
	case s.expected.Volume.HostPath != nil:
		volume.specPath = s.expected.Volume.HostPath.Path
		volume.dir, volume.path, err = volume.view.LookupFollowing(volume.specPath)
	case podinfo.KubeletPlugin(s.expected.Volume) != "":
		volume.plugin = podinfo.KubeletPlugin(s.expected.Volume)
		volume.path = s.node.VolumeDir(s.place.PodUID, volume.plugin, s.expected.Volume.Name)
		volume.dir, err = volume.view.Lookup(volume.path)
	default:
		volume, err = s.searchVolume()
	}
	if err != nil {
		return openedVolume{}, err
	}
	volume.state, err = volume.dir.Stat(sys.StatType)
	if err == nil && !volume.state.IsDir() {
		err = sys.ENOTDIR
	}
	if err != nil {
		volume.dir.Close()
		return openedVolume{}, err
	}
	return volume, nil
}

// podVolume names a volume of a pod by the kubelet's name of it, and by that in the pod's spec.
type podVolume struct{ podUID, volume, specName string }

// searchVolume opens the volume that findVolume finds. A survey finds that of several binds once.
func (s target) searchVolume() (openedVolume, error) {
	if s.volumes == nil {
		return s.findVolume()
	}
	name := podVolume{podUID: s.place.PodUID, volume: s.place.Volume}
	if volume, ok := s.volumes.found[name]; ok {
		var err error
		if volume.dir, err = volume.view.Lookup(volume.path); err == nil {
			return volume, nil
		}
	}
	volume, err := s.findVolume()
	if err == nil {
		s.volumes.found[name] = openedVolume{view: volume.view, plugin: volume.plugin, path: volume.path}
	}
	return volume, err
}

// findVolume finds the one plugin that has a volume of the name that the kubelet bound it under. A PersistentVolume
// of type hostPath has no such directory.
func (s target) findVolume() (openedVolume, error) {
	listed, err := s.node.PodVolumes(s.place.PodUID)
	if err != nil {
		return openedVolume{}, err
	}
	view := s.node.View()
	var found []openedVolume
	for _, v := range listed {
		if v.Block || v.Name != s.place.Volume {
			continue
		}
		volume := openedVolume{view: view, plugin: v.Plugin, path: s.node.VolumePoint(v)}
		if volume.dir, err = view.Lookup(volume.path); err == nil {
			found = append(found, volume)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	for _, volume := range found {
		volume.dir.Close()
	}
	return openedVolume{}, errNoVolume
}

// isLocalTo reports whether the volume lies on a local file system: that of the bind st, whose root is bound, or
// another.
func (v openedVolume) isLocalTo(bound sys.Stat, st mount.State) bool {
	if v.state.Major == bound.Major && v.state.Minor == bound.Minor {
		return isLocalType(st.FSType)
	}
	return v.isLocal()
}

// isLocal reports whether the volume's directory lies on a local file system.
func (v openedVolume) isLocal() bool {
	kind, err := v.view.FSType(v.dir)
	return err == nil && isLocalType(kind)
}

// hasAtomicWriter reports whether the volume is one that the kubelet's atomic writer, or that of a CSI driver, has
// written.
func (v openedVolume) hasAtomicWriter() bool {
	if v.plugin != kubelet.CSIPlugin && !kubelet.WritesAtomically(v.plugin) {
		return false
	}
	data, err := v.view.Lookup(v.path + "/..data")
	data.Close()
	return errors.Is(err, sys.ELOOP)
}
