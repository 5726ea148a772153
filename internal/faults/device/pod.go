// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// livePodReason says why the pod is alive that a path of a volume belongs to. It is empty if the pod has ended, or the
// path belongs to none.
func (n *inspection) livePodReason(ctx context.Context, tables mountTables, name string) string {
	uid, _, ok := tables.splitPodPath(name)
	if !ok {
		return ""
	}
	why, known := n.aliveReasons[uid]
	if !known {
		why = n.askAlive(ctx, uid)
		n.aliveReasons[uid] = why
	}
	return why
}

// askAlive asks the runtime, and if there is none goes by the kubelet's directory. A pod in doubt counts as alive.
func (n *inspection) askAlive(ctx context.Context, uid string) string {
	switch {
	case n.recorded:
		return fmt.Sprintf("whether the pod with UID %q is alive was not recorded", uid)
	case n.inspector.Runtime == nil:
		fd, err := mountns.Lookup(n.node.PID, n.node.PodDir(uid))
		fd.Close()
		if errors.Is(err, sys.ENOENT) {
			return ""
		}
		return fmt.Sprintf("the kubelet still has the directory of the pod with UID %q, and no container runtime was asked whether it is alive", uid)
	}
	sandboxes, err := n.inspector.Runtime.Sandboxes(ctx)
	if err != nil {
		return fmt.Sprintf("it is not known whether the pod with UID %q is alive: %v", uid, err)
	}
	for _, s := range sandboxes {
		if s.PodUID == uid && s.Ready {
			return fmt.Sprintf("pod %s/%s with UID %q, which it was mounted for, is alive", s.Namespace, s.Name, uid)
		}
	}
	return ""
}

// stayingReason says why the kubelet need not have done with the pod yet that a path of a volume belongs to. Nothing waits for
// a file system on no device before that: no other node wants it.
func (n *inspection) stayingReason(tables mountTables, name string) string {
	uid, _, ok := tables.splitPodPath(name)
	why, known := n.stayingReasons[uid]
	if !ok || known || n.recorded || n.inspector.Specs == nil {
		return why
	}
	if pod := n.inspector.Specs.PodByUID(uid); pod != nil {
		switch gone := pod.DeletionTimestamp; {
		case podinfo.Ended(pod) && gone == nil:
		case gone == nil:
			why = fmt.Sprintf("pod %s/%s, which it was mounted for, is not being deleted", pod.Namespace, pod.Name)
		case time.Now().Before(gone.Add(mountstate.Grace)):
			why = fmt.Sprintf("pod %s/%s, which it was mounted for, is being deleted, and the kubelet is taking it down", pod.Namespace, pod.Name)
		}
	}
	n.stayingReasons[uid] = why
	return why
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

// volumeName is the name of the volume that the kubelet mounts at a path. The directory of a staging path is named by a
// digest; the record beside it has the names.
func (n *inspection) volumeName(ctx context.Context, name string) string {
	if path.Base(name) != "globalmount" || !mountinfo.Within(n.node.PluginsDir(), name) {
		return volumeOf(name)
	}
	volume, known := n.stagedVolumes[name]
	if !known && !n.recorded {
		_ = n.node.Do(ctx, func() error {
			record, err := kubelet.ReadVolumeRecordAt(n.table, name)
			if err == nil {
				volume = cmp.Or(record.PersistentVolume, record.Handle)
			}
			return err
		}) // the name is for people
		n.stagedVolumes[name] = volume
	}
	return cmp.Or(volume, volumeOf(name))
}

// addPatch says how such copies are prevented: by a patch of the workload's template, as a pod cannot be changed.
func (n *inspection) addPatch(ctx context.Context, holder *HolderInfo) {
	if holder.In.Owner == nil || holder.Origin.CarrierMount == nil || holder.Origin.HostPath == "" {
		return
	}
	var pod *corev1.Pod
	if n.inspector.Pods != nil && holder.In.Pod.Name != "" {
		found, err := n.inspector.Pods.Pod(ctx, holder.In.Pod.Namespace, holder.In.Pod.Name)
		if err == nil && string(found.UID) == holder.In.Pod.UID { // else the patch does without
			pod = found
		}
	}
	kind := "containers"
	if pod != nil {
		holder.In.Workload = kubelet.WorkloadOf(pod)
		holder.Origin.VolumeMount, kind = volumeMount(pod, holder.In.Container, holder.Origin.CarrierMount.ContainerPath)
	}
	if holder.Origin.CarrierMount.Propagation == cri.PropagationNone && holder.In.Container != "" {
		caveat := "" // where the directory lies on a mount that is private, the container runtime starts no container that is to follow its mounts
		if m, ok := n.table.On(path.Clean(holder.Origin.CarrierMount.HostPath)); ok && m.Shared == 0 && m.Master == 0 {
			caveat = fmt.Sprintf("# The mount at %q is private on this node: make it shared first (mount --make-rshared), or name the kubelet's root\n"+
				"# directory as hostPath, which is shared; else the container does not start.\n", m.Point)
		}
		mount := map[string]string{"mountPath": holder.Origin.CarrierMount.ContainerPath, "mountPropagation": string(cri.PropagationHostToContainer)}
		if holder.Origin.VolumeMount != "" {
			mount["name"] = holder.Origin.VolumeMount
		}
		container := map[string]any{"name": holder.In.Container, "volumeMounts": []any{mount}}
		text, _ := yaml.Marshal(map[string]any{ // maps of strings can be written
			"spec": map[string]any{"template": map[string]any{"spec": map[string]any{kind: []any{container}}}},
		})
		holder.Origin.Patch = caveat + string(text)
	}
}

// volumeMount finds the volume that a container mounts at a path, and in which list of the spec the container is.
func volumeMount(pod *corev1.Pod, container, at string) (name, list string) {
	list = "containers"
	if slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == container }) {
		list = "initContainers"
	}
	for _, m := range podinfo.VolumeMounts(pod, container) {
		if path.Clean("/"+m.MountPath) == path.Clean("/"+at) {
			return m.Name, list
		}
	}
	return "", list
}
