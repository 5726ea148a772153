// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// livePod says why the pod is alive that a path of a volume belongs to. It is empty if the pod has ended, or the path
// belongs to none.
func (l *look) livePod(ctx context.Context, v view, name string) string {
	uid, _, ok := v.podPath(name)
	if !ok {
		return ""
	}
	if why, known := l.pods[uid]; known {
		return why
	}
	why := l.asker.alive(ctx, uid)
	l.pods[uid] = why
	return why
}

// alive asks the runtime, and if there is none goes by the kubelet's directory. A pod in doubt counts as alive.
func (l nodeAsker) alive(ctx context.Context, uid string) string {
	if l.Runtime == nil {
		return l.hasDirectory(uid)
	}
	sandboxes, err := l.Runtime.Sandboxes(ctx)
	if err != nil {
		return fmt.Sprintf("whether the pod with UID %q is alive cannot be told: %v", uid, err)
	}
	for _, s := range sandboxes {
		if s.PodUID == uid && s.Ready {
			return fmt.Sprintf("pod %s/%s with UID %q, which it was mounted for, is alive", s.Namespace, s.Name, uid)
		}
	}
	return ""
}

func (l *look) hasDirectory(uid string) string {
	fd, err := mountns.Lookup(l.node.PID, l.node.PodDir(uid))
	fd.Close()
	if errors.Is(err, sys.ENOENT) {
		return ""
	}
	return fmt.Sprintf("the kubelet still has the directory of the pod with UID %q, and no container runtime tells whether it is alive", uid)
}

// volumeOf is the name of the volume that the kubelet mounts at a path, or of the directory where the path has none.
func volumeOf(name string) string {
	if name == "" {
		return ""
	}
	parts := strings.Split(name, "/")
	for i, part := range parts {
		switch {
		case part == "volumes" && i+2 < len(parts): // volumes/PLUGIN/NAME
			return parts[i+2]
		case part == "volume-subpaths" && i+1 < len(parts):
			return parts[i+1]
		}
	}
	last := path.Base(name)
	if last == "globalmount" || last == "mount" {
		return path.Base(path.Dir(name))
	}
	return last
}

// advise says how such copies are prevented.
func (l *look) advise(ctx context.Context, h *Held) {
	if h.Owner == nil || h.Carrier == nil || h.HostPath == "" {
		return
	}
	var pod *corev1.Pod
	if l.Pods != nil && h.Pod.Name != "" {
		found, err := l.Pods.Pod(ctx, h.Pod.Namespace, h.Pod.Name)
		if err == nil && string(found.UID) == h.Pod.UID { // else the patch does without
			pod = found
		}
	}
	kind := "containers"
	if pod != nil {
		h.Workload = kubelet.WorkloadOf(pod)
		h.VolumeMount, kind = volumeMount(pod, h.Container, h.Carrier.ContainerPath)
	}
	if h.Carrier.Propagation == cri.PropagationNone && h.Container != "" {
		h.Patch = l.caveat(h.Carrier.HostPath) + patch(*h, kind)
	}
}

// caveat says, as a comment of YAML, what has to be done on the node before a container can follow its mounts: where
// the directory lies on a mount that is private, the container runtime refuses to start one that asks to.
func (l *look) caveat(hostPath string) string {
	m, ok := l.table.On(path.Clean(hostPath))
	if !ok || m.Shared != 0 || m.Master != 0 {
		return ""
	}
	return fmt.Sprintf("# The mount at %q is private on this node: make it shared first (mount --make-rshared), or name the kubelet's root\n"+
		"# directory as hostPath, which is shared; else the container does not start.\n", m.Point)
}

// volumeMount finds the volume that a container mounts at a path, and in which list of the spec the container is.
func volumeMount(pod *corev1.Pod, container, at string) (name, list string) {
	for list, containers := range map[string][]corev1.Container{"containers": pod.Spec.Containers, "initContainers": pod.Spec.InitContainers} {
		for _, c := range containers {
			if c.Name != container {
				continue
			}
			for _, m := range c.VolumeMounts {
				if path.Clean("/"+m.MountPath) == path.Clean("/"+at) {
					return m.Name, list
				}
			}
			return "", list
		}
	}
	return "", "containers"
}

// patch is for the workload's template: what is in a pod cannot be changed.
func patch(h Held, list string) string {
	mount := map[string]string{"mountPath": h.Carrier.ContainerPath, "mountPropagation": string(cri.PropagationHostToContainer)}
	if h.VolumeMount != "" {
		mount["name"] = h.VolumeMount
	}
	container := map[string]any{"name": h.Container, "volumeMounts": []any{mount}}
	text, err := yaml.Marshal(map[string]any{
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{list: []any{container}}}},
	})
	if err != nil {
		return "" // maps of strings can be written
	}
	return string(text)
}
