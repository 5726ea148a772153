// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// maxEntries bounds how many entries of a volume are looked at. A ConfigMap of more has keys of less than 256 bytes.
const maxEntries = 4096

// lostEntry is an entry of a volume's current version that has no link beside it (kubernetes#121472).
type lostEntry struct {
	Name string `json:"name"`
	// Instead is the kind of the entry in the link's place; empty: nothing.
	Instead string `json:"instead,omitempty"`
}

// halfWritten looks for volumes that the kubelet did not finish to write, and that the container mounts.
func (c containerSources) halfWritten() (found []fault.Finding) {
	if !volumesAreUp(c.status) {
		return nil
	}
	for _, v := range podinfo.VolumesOf(c.pod, c.name) {
		if !hasWriter(v) {
			continue
		}
		dir := c.volumeDir(v)
		lost := answer(c.paths, c.paths.WithoutLink, dir, func() (lost []lostEntry) {
			for range maxLookups { // the kubelet makes the links one after the other
				if lost = withoutLink(*c.paths.view, dir); len(lost) == 0 {
					break
				}
			}
			return lost
		})
		for _, entry := range lost {
			if !c.mountsEntry(v.Name, entry.Name) {
				continue
			}
			text := fmt.Sprintf("volume %q is half written: %q is below %q, and the link of that name in %q is missing", v.Name, entry.Name, kubelet.DataLink, dir)
			if entry.Instead != "" {
				text += fmt.Sprintf(": a %s is in its place", entry.Instead)
			}
			found = append(found, c.finding(fault.MissingBindSource, v.Name, text,
				"a kubelet that is stopped while it writes a volume leaves this; later it adds no link as long as the content is the same",
				"a new pod gets a whole volume"))
		}
	}
	return found
}

// hasWriter reports whether the kubelet's atomic writer writes a volume.
func hasWriter(v corev1.Volume) bool {
	return kubelet.WritesAtomically(podinfo.KubeletPlugin(v))
}

// mountsEntry reports whether the container mounts the whole volume, that entry, or one below it.
func (c containerSources) mountsEntry(volume, entry string) bool {
	names := podinfo.SubPathNames(c.pod, c.name)
	for _, m := range podinfo.VolumeMounts(c.pod, c.name) {
		if m.Name != volume {
			continue
		}
		if m.SubPath == "" && m.SubPathExpr == "" {
			return true
		}
		name := names(m)
		if first, _, _ := strings.Cut(path.Clean(name), "/"); first == entry || first == "." && name != "" {
			return true
		}
	}
	return false
}

// withoutLink lists the entries that the kubelet has written to the directory of a volume and that have no link. Nothing is asked that may hang.
func withoutLink(view mountns.View, dir string) (lost []lostEntry) {
	fd, err := view.LookupNotHanging(dir)
	if err != nil {
		return nil
	}
	defer fd.Close()
	version, resolved, err := openedVolume{dir: fd, view: view, path: dir}.openByComponents(kubelet.DataLink)
	if err != nil {
		return nil
	}
	defer version.Close()
	if resolved == "/"+kubelet.DataLink {
		return nil // no link: the kubelet has not written this
	}
	names, _, err := sys.ListDir(version, maxEntries)
	if err != nil {
		return nil
	}
	slices.Sort(names)
	for _, name := range names {
		entry, err := mountns.LookupIn(fd, path.Join(dir, name))
		switch {
		case errors.Is(err, sys.ENOENT):
			lost = append(lost, lostEntry{Name: name})
		case err == nil:
			st, err := entry.Stat(sys.StatType)
			entry.Close()
			if err == nil {
				lost = append(lost, lostEntry{name, describeKind(st)})
			}
		}
	}
	return lost
}
