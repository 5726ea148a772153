// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/sys"
)

const (
	// CSIPlugin is the plugin of the volumes that CSI drivers mount.
	CSIPlugin = "kubernetes.io/csi"
	// LocalPlugin is the plugin of a PersistentVolume that is a path of the node.
	LocalPlugin = "kubernetes.io/local-volume"
)

// atomicPlugins are the plugins that write with the kubelet's atomic writer, see kubernetes/pkg/volume/util/atomic_writer.go.
var atomicPlugins = []string{"kubernetes.io/configmap", "kubernetes.io/secret", "kubernetes.io/projected", "kubernetes.io/downward-api"}

// WritesAtomically reports whether the kubelet writes the volumes of a plugin with its atomic writer.
func WritesAtomically(plugin string) bool { return slices.Contains(atomicPlugins, plugin) }

// FillsItself reports whether the kubelet makes the content of a plugin's volumes itself, and mounts no driver's file system there.
func FillsItself(plugin string) bool {
	return WritesAtomically(plugin) || plugin == "kubernetes.io/empty-dir" || plugin == "kubernetes.io/git-repo"
}

// PluginOf is the plugin whose volumes lie in a directory of that name in a pod's directory, such as kubernetes.io~csi.
func PluginOf(dir string) string { return strings.ReplaceAll(dir, "~", "/") }

// Volume names the place where the kubelet keeps a volume of a pod.
type Volume struct {
	PodUID string
	// Plugin is the name of the volume plugin, such as kubernetes.io/csi.
	Plugin string
	// Name is the kubelet's name of the volume: its name in the pod, or the name of the PersistentVolume if the volume
	// comes from a claim.
	Name string
	// Block is whether it is a raw block volume: the place has a link to the device.
	Block bool `json:",omitempty"`
}

// VolumePoint is the path of the mount of such a volume, if it is a mount: its directory, or a directory in it for CSI. It is
// empty if the names cannot be a path.
func (l *Layout) VolumePoint(v Volume) string {
	dir := l.VolumeDir(v.PodUID, v.Plugin, v.Name)
	switch {
	case dir != "" && v.Block:
		return path.Join(l.PodDir(v.PodUID), devicesDir, path.Base(path.Dir(dir)), v.Name)
	case dir != "" && v.Plugin == CSIPlugin:
		return dir + mountOfCSI
	}
	return dir
}

// mountOfCSI is the way to the mount of a CSI volume from its directory.
const mountOfCSI = "/mount"

// ParseVolume is the reverse of VolumePoint: it takes a path that lies below this kubelet's root and is built as the
// kubelet builds it, and no other.
func (l *Layout) ParseVolume(point string) (Volume, bool) {
	v, way, ok := l.splitVolume(point)
	if v.Plugin == CSIPlugin {
		return v, ok && way == mountOfCSI
	}
	return v, ok && way == ""
}

// ParseInsideVolume returns the volume of a path that lies in the directory of a volume, and is not that itself.
func (l *Layout) ParseInsideVolume(point string) (Volume, bool) {
	v, way, ok := l.splitVolume(point)
	if v.Plugin == CSIPlugin {
		return v, ok && strings.HasPrefix(way, mountOfCSI+"/")
	}
	return v, ok && way != ""
}

// splitVolume returns the volume whose directory a path is, or lies in, and the way from there with the slash before it.
func (l *Layout) splitVolume(point string) (v Volume, way string, ok bool) {
	rest, below := l.belowPods(point)
	uid, rest, _ := strings.Cut(rest, "/")
	rest, inVolumes := strings.CutPrefix(rest, volumesDir+"/")
	plugin, name, found := strings.Cut(rest, "/")
	if !below || !inVolumes || !found {
		return Volume{}, "", false
	}
	if end := strings.IndexByte(name, '/'); end >= 0 {
		name, way = name[:end], name[end:]
	}
	return Volume{PodUID: uid, Plugin: PluginOf(plugin), Name: name}, way, isPathComponent(uid) && isPathComponent(plugin) && isPathComponent(name)
}

// maxPods bounds the directories of pods that are listed.
const maxPods = 65536

// PodUIDs lists the pods that have a directory of the kubelet, in no order.
func (n *Node) PodUIDs(ctx context.Context) ([]string, error) {
	var uids []string
	err := n.Do(ctx, func() error {
		dir, err := os.Open(n.podsDir)
		if errors.Is(err, sys.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		defer dir.Close()
		uids, err = dir.Readdirnames(maxPods)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", n, err)
	}
	return uids, nil
}

// OwnPath returns a path below a pod's directory as this kubelet's root has it. The kubelet gives the container runtime
// paths with the links that are in its own arguments. Other paths are given as they are. It follows only links that
// lead to the directory of the pods.
func (n *Node) OwnPath(reported, podUID string) string {
	reported = path.Clean(reported)
	pods, rest, ok := strings.Cut(reported, "/pods/"+podUID+"/")
	if !ok || !isPathComponent(podUID) || pods+"/pods" == n.podsDir {
		return reported
	}
	prefix := ""
	if n.PID != 0 {
		prefix = n.process.rootPrefix()
	}
	resolved, err := resolveIn(prefix, pods+"/pods", nil)
	if err != nil || resolved != n.podsDir {
		return reported
	}
	return path.Join(n.PodDir(podUID), rest)
}
