// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"path"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Parent opens, with O_PATH, the directory of the entry that the subPath bound at point names now, and says under which
// name: a directory that is removed says nothing itself, its parent does. It is called inside the kubelet's namespace,
// and asks local file systems only. The caller closes the directory. An error says that it is not known.
func Parent(node *kubelet.Node, pod *corev1.Pod, point string) (dir *sys.FD, name string, err error) {
	target, ok := targetAt(node, pod, point)
	if !ok {
		return nil, "", errNoVolume
	}
	state, err := mount.InspectIn(point, node.TableInside)
	if err != nil {
		return nil, "", err
	}
	volume, err := target.openVolume()
	if err != nil {
		return nil, "", err
	}
	defer volume.close()
	if !volume.isLocal() {
		return nil, "", errNoVolume
	}
	if name = target.nameInVolume(volume, state); name == "" {
		return nil, "", errNoVolume // not known, or the volume itself is bound
	}
	entry, resolved, err := volume.openByComponents(name)
	if err != nil {
		return nil, "", err
	}
	entry.Close()
	if resolved == "/" {
		return nil, "", errNoVolume
	}
	dir, err = sys.LookupBeneath(volume.dir, "."+path.Dir(resolved)) // the directory that has the entry, after all links
	return dir, path.Base(resolved), err
}
