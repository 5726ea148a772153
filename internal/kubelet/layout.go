// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Layout has the directories of pods and of volume plugins of a kubelet, as paths in its mount namespace. It reads
// no file system once its links are resolved.
type Layout struct {
	// Root is the kubelet's root directory, with no symbolic link in it.
	Root string

	podsDir string // Root/pods with links resolved
}

// resolve resolves the root, and the directory of the pods in it, which some put on another disk with a link.
// prefix leads to the root directory of the kubelet's process.
func (l *Layout) resolve(prefix string) error {
	if !path.IsAbs(l.Root) {
		return fmt.Errorf("resolve kubelet root %q: not an absolute path", l.Root)
	}
	root, err := resolveIn(prefix, l.Root, nil)
	if err != nil {
		return fmt.Errorf("resolve kubelet root %q: %w", l.Root, err)
	}
	l.Root = root
	l.podsDir, err = resolveIn(prefix, root+"/pods", nil)
	if errors.Is(err, fs.ErrNotExist) {
		l.podsDir = path.Join(root, "pods")
		return nil
	}
	if err != nil {
		return fmt.Errorf("resolve pods of kubelet root %q: %w", l.Root, err)
	}
	return nil
}

// PodsDir has the directories of the pods, with no symbolic link in it.
func (l *Layout) PodsDir() string { return l.podsDir }

// PodDir is the directory of a pod.
func (l *Layout) PodDir(uid string) string {
	if len(l.podsDir) > 1 && isPathComponent(uid) { // as path.Join has it: the directory is clean
		return l.podsDir + "/" + uid
	}
	return path.Join(l.podsDir, uid)
}

// belowPods is the way to a path from the directory of the pods. It is called for each mount of a node, and allocates nothing.
func (l *Layout) belowPods(point string) (way string, ok bool) {
	rest, ok := strings.CutPrefix(point, l.podsDir)
	if !ok || len(l.podsDir) < 2 {
		return "", false
	}
	return strings.CutPrefix(rest, "/")
}

// StagingPoints lists the paths at which a CSI driver may mount a volume for the whole node: by the volume's
// handle, and by the PersistentVolume's name, as kubelets before 1.24 do. Names that cannot be a path are left out.
func (l *Layout) StagingPoints(driver, handle, persistentVolume string) []string {
	plugin := path.Join(l.Root, "plugins", CSIPlugin)
	var points []string
	if isPathComponent(driver) && handle != "" {
		sum := sha256.Sum256([]byte(handle))
		points = append(points, path.Join(plugin, driver, hex.EncodeToString(sum[:]), "globalmount"))
	}
	if isPathComponent(persistentVolume) {
		points = append(points, path.Join(plugin, "pv", persistentVolume, "globalmount"))
	}
	return points
}

// PluginsDir has the directories of the volume plugins, staging paths among them.
func (l *Layout) PluginsDir() string { return path.Join(l.Root, "plugins") }

// VolumeDir is the directory in which the kubelet keeps a volume of a pod. plugin is the name of the volume plugin, such as
// kubernetes.io/configmap. It is empty if the names cannot be a path.
func (l *Layout) VolumeDir(uid, plugin, volume string) string {
	escaped := strings.ReplaceAll(plugin, "/", "~")
	if !isPathComponent(uid) || !isPathComponent(escaped) || !isPathComponent(volume) {
		return ""
	}
	return l.PodDir(uid) + "/" + volumesDir + "/" + escaped + "/" + volume
}

// isPathComponent reports whether name can be one component of a path, and no more.
func isPathComponent(name string) bool {
	return name != "" && name != "." && name != ".." && strings.IndexByte(name, '/') < 0 && strings.IndexByte(name, 0) < 0
}

// ParseStaging reports whether a path is one at which a volume is mounted for the whole node: of a CSI driver, or of a plugin of the kubelet.
func (l Layout) ParseStaging(point string) (csi, ok bool) {
	below, ok := mountinfo.Below(l.PluginsDir(), point)
	parts := strings.Split(below, "/")
	if !ok || len(parts) < 4 || parts[0] != "kubernetes.io" {
		return false, false
	}
	if csi = parts[1] == "csi"; csi {
		return true, len(parts) == 5 && parts[4] == "globalmount"
	}
	return false, len(parts) == 4 && parts[2] == "mounts" && parts[1] != "local-volume"
}

// resolveIn follows the symbolic links in name as a process sees them whose root directory is at root, such as
// /proc/123/root. The kernel would follow an absolute link behind that from our own root directory. A check is
// called with each file on the way before any other call on that file.
func resolveIn(root, name string, check func(name string, at *sys.FD) error) (string, error) {
	dir, err := sys.OpenRoot(cmp.Or(root, "/"))
	if err != nil {
		return "", &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer dir.Close()
	fd, resolved, err := sys.Walk{Root: dir, Check: check}.Resolve(name)
	if err != nil {
		return "", &os.PathError{Op: "resolve", Path: root + resolved, Err: err}
	}
	fd.Close()
	return resolved, nil
}
