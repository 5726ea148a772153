// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
)

// MissingSources looks for the volumes of one container that are not there at all: the path of a hostPath, or the
// directory of a volume that the kubelet makes. Only what a lookup without links, and without asking a file system
// that may hang, proves to be missing is reported.
func MissingSources(ctx context.Context, n *kubelet.Node, pod *corev1.Pod, container string) ([]fault.Finding, error) {
	var found []fault.Finding
	err := n.Do(ctx, func() error {
		for _, v := range volumesOf(pod, container) {
			source := ""
			switch {
			case v.HostPath != nil:
				source = v.HostPath.Path
			case plugin(v) != "":
				source = n.VolumeDir(string(pod.UID), plugin(v), v.Name)
			}
			if missing(source) {
				found = append(found, fault.Finding{
					Code: fault.MissingBindSource, Pod: PodOf(pod), Container: container, Volume: v.Name,
					Evidence: []string{fmt.Sprintf("volume %q is to come from %q: nothing is there", v.Name, source)},
				})
			}
		}
		return nil
	})
	return found, err
}

func missing(source string) bool {
	if source == "" {
		return false
	}
	_, err := mount.Inspect(path.Clean(source))
	return errors.Is(err, sys.ENOENT)
}

// volumesOf lists the volumes that a container mounts, each once.
func volumesOf(pod *corev1.Pod, name string) []corev1.Volume {
	mounted := map[string]bool{}
	for _, c := range containers(pod) {
		for _, m := range c.mounts {
			if c.name == name {
				mounted[m.Name] = true
			}
		}
	}
	var found []corev1.Volume
	for _, v := range pod.Spec.Volumes {
		if mounted[v.Name] {
			found = append(found, v)
		}
	}
	return found
}
