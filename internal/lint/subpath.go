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

// systemDirs are directories with content that the image needs. No cure mounts over them, nor over a directory at the top, nor over
// a directory that several packages share, whose name ends in .d, nor below /etc, where a program has its other files.
var systemDirs = []string{
	"/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/sbin",
	"/usr/share", "/var/lib", "/var/run", "/var/log",
}

// mutableSubPaths finds the subPaths of content that the kubelet replaces. The subPaths of one directory of the container are
// one finding: one volume cures them.
func (c *check) mutableSubPaths(mounting container) []Finding {
	groups := map[string][]int{}
	var order []string
	for i, m := range mounting.mounts {
		if m.SubPath == "" && m.SubPathExpr == "" {
			continue
		}
		v := c.volumes[m.Name]
		mutable := v.Projected != nil || v.DownwardAPI != nil
		switch {
		case v.ConfigMap != nil:
			mutable = c.changes(Content{"ConfigMap", c.namespace, v.ConfigMap.Name})
		case v.Secret != nil:
			mutable = c.changes(Content{"Secret", c.namespace, v.Secret.SecretName})
		}
		if !mutable {
			continue
		}
		dir := path.Dir(path.Clean("/" + m.MountPath))
		if groups[dir] == nil {
			order = append(order, dir)
		}
		groups[dir] = append(groups[dir], i)
	}
	var all []Finding
	for _, dir := range order {
		all = append(all, c.mutableSubPath(mounting, dir, groups[dir]))
	}
	return all
}

// changes reports whether a ConfigMap or Secret may change.
func (c *check) changes(content Content) bool {
	return c.options.Immutable == nil || !c.options.Immutable(content)
}

// mutableSubPath returns the finding about the mounts of a container that lie in one directory.
func (c *check) mutableSubPath(mounting container, dir string, indexes []int) Finding {
	finding := Finding{Rule: MutableSubPath, Container: mounting.name}
	var paths []string
	for _, i := range indexes {
		finding.Mounts = append(finding.Mounts, c.mount(mounting, i))
		paths = append(paths, fmt.Sprintf("%q", mounting.mounts[i].MountPath))
	}
	finding.Summary = fmt.Sprintf("container %q mounts %s by subPath from content that the kubelet replaces at each update: on a kubelet before 1.19 it "+
		"cannot start again after one", mounting.name, strings.Join(paths, ", "))
	sources, why := c.sources(mounting, indexes)
	if why != "" {
		finding.Cure = "mount the whole volume as a directory instead of a subPath; it is not written out here: " + why
		return finding
	}
	// The volume that the patch adds has the name of the old one with a mark.
	old := mounting.mounts[indexes[0]].Name
	base := strings.TrimRight(old[:min(len(old), 50)], "-") + "-dir"
	name := base
	for i := 2; c.taken[name]; i++ {
		name = fmt.Sprintf("%s-%d", base, i)
	}
	c.taken[name] = true
	at := dir
	// The image needs its content there, or the runtime can make no directory for another mount in a volume that is read-only.
	moved := strings.Count(dir, "/") <= 1 || inside(dir, "/etc") || strings.HasSuffix(dir, ".d") || slices.Contains(systemDirs, dir)
	for i, m := range mounting.mounts {
		moved = moved || !slices.Contains(indexes, i) && inside(mountedAt(m), dir)
	}
	if moved {
		at = "/mnt/" + name
	}
	volume := corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}
	mounts := []any{map[string]any{"name": name, "mountPath": at, "readOnly": true}}
	for _, i := range indexes { // the mounts of the subPaths go
		mounts = append(mounts, map[string]any{"$patch": "delete", "mountPath": mounting.mounts[i].MountPath})
	}
	finding.Patch = patch(c.kind, map[string]any{
		"volumes":     []any{volume},
		mounting.list: []any{map[string]any{"name": mounting.name, "volumeMounts": mounts}},
	})
	finding.Cure = fmt.Sprintf("mount these files from a projected volume at the directory %q, as the patch does: then updates reach the container, too; "+
		"what the image has in that directory is hidden", at)
	if moved {
		finding.Cure = fmt.Sprintf("mount these files from a projected volume at a directory of their own, %q, as the patch does, and have the program read "+
			"them there, or link to them when it starts: %q cannot be hidden by a volume", at, dir)
	}
	return finding
}
