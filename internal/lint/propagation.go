// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// driverDirs are directories of the host in which known FUSE drivers mount, for pods that take them by hostPath:
// JuiceFS, Fluid and CernVM-FS.
var driverDirs = []string{"/var/lib/juicefs", "/jfs", "/runtime-mnt", "/cvmfs"}

// otherDirs are directories of the host in which others than FUSE drivers mount: devices, bpf, network namespaces.
var otherDirs = []string{"/dev", "/sys", "/proc", "/etc", "/lib", "/run", "/var/run"}

// fills reports whether a container mounts file systems for others by a volumeMount, as far as the template shows it. A
// directory above the kubelet's, or in it, is mounted for the kubelet's sake.
func fills(v corev1.Volume, m corev1.VolumeMount) bool {
	if !spreads(m) || v.HostPath == nil {
		return spreads(m)
	}
	dir := hostDir(v, m)
	return dir != "" && !overlaps(dir, "/var/lib/kubelet") && !slices.ContainsFunc(otherDirs, func(d string) bool { return inside(dir, d) })
}

// MountDirs lists the directories of the host in which containers of a pod mount file systems for others: hostPath
// volumes that they mount with Bidirectional propagation.
func MountDirs(spec *corev1.PodSpec) []string {
	volumes := map[string]corev1.Volume{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = v
	}
	var dirs []string
	seen := map[string]bool{}
	for _, of := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, m := range of.VolumeMounts {
			v := volumes[m.Name]
			if dir := hostDir(v, m); dir != "" && fills(v, m) && !seen[dir] {
				seen[dir] = true
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// hostDir is the directory of the host that a volumeMount mounts; empty if the volume is no hostPath. A path with a
// symbolic link in it is taken by its letters.
func hostDir(v corev1.Volume, m corev1.VolumeMount) string {
	if v.HostPath == nil || !path.IsAbs(v.HostPath.Path) {
		return ""
	}
	return path.Join(v.HostPath.Path, m.SubPath)
}

// inside reports whether name is dir or lies in it.
func inside(name, dir string) bool {
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}

// overlaps reports whether one of the two lies in the other.
func overlaps(a, b string) bool { return inside(a, b) || inside(b, a) }

// propagation finds the mounts of a container that do not follow mounts and unmounts below them.
func (c *check) propagation(mounting container) []Finding {
	var all []Finding
	for i, m := range mounting.mounts {
		if mode := m.MountPropagation; mode != nil && (*mode == corev1.MountPropagationHostToContainer || *mode == corev1.MountPropagationBidirectional) {
			continue // it follows them
		}
		var rule Rule
		var why string // the mount is a risk
		dir, root := hostDir(c.volumes[m.Name], m), c.options.KubeletRoot
		other := slices.IndexFunc(c.mounters[m.Name], func(name string) bool { return name != mounting.name })
		driver := slices.IndexFunc(driverDirs, func(d string) bool { return inside(dir, d) })
		mounted, ofWorkload := c.options.MountDirs.overlapping(dir)
		switch {
		case other >= 0:
			rule, why = FUSEPropagation, fmt.Sprintf("container %q mounts volume %q, in which container %q mounts file systems, without "+
				"mountPropagation HostToContainer: once they are mounted again, it keeps the dead ones", mounting.name, m.Name, c.mounters[m.Name][other])
		case dir == "":
			continue
		case overlaps(dir, path.Join(root, "pods")) || overlaps(dir, path.Join(root, "plugins/kubernetes.io")): // drivers' sockets in plugins are no volumes
			rule, why = HostPropagation, fmt.Sprintf("container %q mounts %q of the host, in which the kubelet mounts volumes, without mountPropagation "+
				"HostToContainer: it keeps a copy of every volume that is mounted there when it starts, and their devices cannot be detached",
				mounting.name, dir)
		case ofWorkload:
			rule, why = FUSEPropagation, fmt.Sprintf("container %q mounts %q of the host, and another workload mounts file systems in %q, without "+
				"mountPropagation HostToContainer: once they are mounted again, it keeps the dead ones", mounting.name, dir, mounted)
		case driver >= 0:
			rule, why = FUSEPropagation, fmt.Sprintf("container %q mounts %q of the host, and FUSE drivers mount in %q, without mountPropagation "+
				"HostToContainer: once the file system is mounted again, it keeps the dead one", mounting.name, dir, driverDirs[driver])
		default:
			continue
		}
		cure := "set mountPropagation: HostToContainer"
		if rule == HostPropagation {
			cure += ", or mount a directory that has no volumes in it"
		}
		if dir != "" {
			cure += fmt.Sprintf("; %q must lie on a shared mount of the node, as it does under systemd, or the container does not start", dir)
		}
		changed := map[string]any{"name": m.Name, "mountPath": m.MountPath, "mountPropagation": string(corev1.MountPropagationHostToContainer)}
		if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != corev1.RecursiveReadOnlyDisabled {
			changed["recursiveReadOnly"] = nil // a mount that is read-only with all mounts on it cannot follow others
		}
		all = append(all, Finding{
			Rule: rule, Container: mounting.name, Mounts: []Mount{c.mount(mounting, i)}, Summary: why, Cure: cure,
			Patch: patch(c.kind, map[string]any{mounting.list: []any{map[string]any{"name": mounting.name, "volumeMounts": []any{changed}}}}),
		})
	}
	return all
}
