// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// mountedAt is the place of a volumeMount in its container.
func mountedAt(m corev1.VolumeMount) string { return path.Clean("/" + m.MountPath) }

// readOnlyMountPoints finds mounts below an emptyDir that the container mounts read-only: the runtime makes no directory there, and
// an emptyDir begins without one. A container that mounts it to write may make the directory first. In a volume of keys the
// kubelet makes it, and the content of other volumes is not known.
func (c *check) readOnlyMountPoints(mounting container) (all []Finding) {
	for i, m := range mounting.mounts {
		above := -1
		for n, o := range mounting.mounts { // the nearest one decides
			if n != i && mountedAt(o) != mountedAt(m) && inside(mountedAt(m), mountedAt(o)) && (above < 0 || inside(mountedAt(o), mountedAt(mounting.mounts[above]))) {
				above = n
			}
		}
		if above < 0 {
			continue
		}
		o := mounting.mounts[above]
		writes := func(m corev1.VolumeMount) bool { return m.Name == o.Name && !m.ReadOnly }
		if !o.ReadOnly || c.volumes[o.Name].EmptyDir == nil ||
			slices.ContainsFunc(c.containers(), func(of container) bool { return slices.ContainsFunc(of.mounts, writes) }) {
			continue
		}
		changed := map[string]any{"name": o.Name, "mountPath": o.MountPath, "readOnly": false}
		if o.RecursiveReadOnly != nil {
			changed["recursiveReadOnly"] = nil // it is for mounts that are read-only
		}
		all = append(all, Finding{
			Rule: ReadOnlyMountPoint, Container: mounting.name, Mounts: []Mount{c.mount(mounting, i)},
			Summary: fmt.Sprintf("container %q mounts %q below %q, which is the emptyDir %q, mounted read-only: the emptyDir has no such directory and "+
				"the runtime cannot make it, so that the container does not start", mounting.name, m.MountPath, o.MountPath, o.Name),
			Cure:  fmt.Sprintf("mount %q to write, as the patch does, or mount %q elsewhere", o.MountPath, m.MountPath),
			Patch: patch(c.kind, map[string]any{mounting.list: []any{map[string]any{"name": mounting.name, "volumeMounts": []any{changed}}}}),
		})
	}
	return all
}

// singleFiles finds hostPaths of one file or socket. A program that replaces its file, or binds its socket again, puts another in its
// place, and a container keeps the one that it has got. Without a type, the name alone says that it is a socket.
func (c *check) singleFiles(mounting container) (all []Finding) {
	for i, m := range mounting.mounts {
		v := c.volumes[m.Name].HostPath
		if v == nil || m.SubPath != "" || m.SubPathExpr != "" {
			continue
		}
		kind := "file"
		switch of := cmp.Or(v.Type, new(corev1.HostPathType)); {
		case *of == corev1.HostPathSocket, *of == corev1.HostPathUnset && strings.HasSuffix(v.Path, ".sock"):
			kind = "socket"
		case *of != corev1.HostPathFile && *of != corev1.HostPathFileOrCreate:
			continue
		}
		all = append(all, Finding{
			Rule: SingleFile, Container: mounting.name, Mounts: []Mount{c.mount(mounting, i)},
			Summary: fmt.Sprintf("container %q mounts the %s %q of the host by itself: once another takes its place, as at a restart or an update of "+
				"its program, the container keeps the old one until it starts again", mounting.name, kind, v.Path),
			Cure: fmt.Sprintf("mount the directory %q instead, of type Directory, and have the program open the %s in it", path.Dir(path.Clean(v.Path)), kind),
		})
	}
	return all
}

// mountsInside finds the mounts that the runtime makes for a container inside a volume that it mounts with Bidirectional propagation: other
// volumes, and its termination log. These mounts come to lie in the pod's directory on the host, where nothing unmounts them.
func (c *check) mountsInside(mounting container) (all []Finding) {
	for i, m := range mounting.mounts {
		if !spreads(m) || c.volumes[m.Name].HostPath != nil {
			continue
		}
		log := cmp.Or(mounting.terminationLog, corev1.TerminationMessagePathDefault)
		what, cure := "", fmt.Sprintf("mount volume %q at a directory that has no other mount in it", m.Name)
		var changed map[string]any
		switch {
		case inside(path.Clean("/"+log), mountedAt(m)):
			what = fmt.Sprintf("its termination log %q", log)
			if mountedAt(m) != "/dev" && !inside("/dev", mountedAt(m)) {
				cure = "have the termination log elsewhere, as the patch does"
				changed = map[string]any{"name": mounting.name, "terminationMessagePath": corev1.TerminationMessagePathDefault}
			}
		default:
			for _, o := range mounting.mounts {
				if mountedAt(o) != mountedAt(m) && inside(mountedAt(o), mountedAt(m)) {
					what = fmt.Sprintf("%q", o.MountPath)
					break
				}
			}
		}
		if what == "" {
			continue
		}
		finding := Finding{
			Rule: MountInside, Container: mounting.name, Mounts: []Mount{c.mount(mounting, i)}, Cure: cure,
			Summary: fmt.Sprintf("container %q mounts volume %q at %q with mountPropagation Bidirectional, and the runtime mounts %s inside it: that mount "+
				"spreads to the pod's directory on the host, where it keeps the pod from going", mounting.name, m.Name, m.MountPath, what),
		}
		if changed != nil {
			finding.Patch = patch(c.kind, map[string]any{mounting.list: []any{changed}})
		}
		all = append(all, finding)
	}
	return all
}
