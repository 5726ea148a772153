// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// podVolumes is what shows that a device belongs to a volume of a pod. The kubelet makes all of it: its directories and
// records of the pod, its mounts, and the claims that are bound. Nothing of it says that a mount may go.
type podVolumes struct {
	node *kubelet.Node
	uid  string
	name string // namespace/name
	// persistentVolumes are the names of those that the pod has.
	persistentVolumes []string
	// points are where the kubelet has them mounted for the whole node.
	points []string
	// devices are those that the pod has as raw block volumes, and those that are made of them.
	devices []blockdev.Device
}

// usagesOfPod leaves those devices that belong to a volume of a pod, and that are held by copies of the kubelet's mounts.
func (n *inspection) usagesOfPod(ctx context.Context, pod *corev1.Pod, all []*Usage) ([]*Usage, error) {
	held := slices.DeleteFunc(slices.Clone(all), func(c *Usage) bool { return !c.HasCopies() })
	if len(held) == 0 {
		return nil, nil
	}
	v := &podVolumes{node: n.node, uid: string(pod.UID), name: pod.Namespace + "/" + pod.Name}
	err := n.node.Do(ctx, func() error {
		volumes, err := n.node.PodVolumes(v.uid)
		for _, volume := range volumes {
			if isInline(pod, volume.Name) {
				continue // only the pod's own directory says whose it is: other pods may have volumes of that name
			}
			v.addPersistentVolume(volume.Name)
			if volume.Plugin != kubelet.CSIPlugin {
				continue
			}
			if record, err := kubelet.ReadVolumeRecordAt(n.table, n.node.VolumePoint(volume)); err == nil { // else the name has to do
				v.points = append(v.points, n.node.StagingPoints(record.Driver, record.Handle, "")...)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if v.devices, err = n.blockVolumes(v.uid); err != nil {
		return nil, err
	}
	for _, c := range held {
		c.PodReason = v.reason(c)
	}
	isOther := func(c *Usage) bool { return c.PodReason == "" }
	if n.inspector.Claims == nil || !slices.ContainsFunc(held, isOther) {
		return slices.DeleteFunc(held, isOther), nil
	}
	for _, name := range n.inspector.Claims.PersistentVolumes(ctx, pod) {
		v.addPersistentVolume(name)
	}
	for _, c := range held {
		c.PodReason = v.reason(c)
	}
	return slices.DeleteFunc(held, isOther), nil
}

// isInline reports whether a volume of that name is defined in the pod itself, and comes from no claim.
func isInline(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == name && v.PersistentVolumeClaim == nil && v.Ephemeral == nil
	})
}

func (v *podVolumes) addPersistentVolume(name string) {
	if slices.Contains(v.persistentVolumes, name) {
		return
	}
	v.persistentVolumes = append(v.persistentVolumes, name)
	v.points = append(v.points, v.node.StagingPoints("", "", name)...)
	if point := v.node.LocalVolumePoint(name); point != "" {
		v.points = append(v.points, point)
	}
}

// blockVolumes finds the devices whose nodes the kubelet has bound to a file for a pod, and those that are made of them. A
// device that goes meanwhile is left out.
func (n *inspection) blockVolumes(uid string) ([]blockdev.Device, error) {
	var devices []blockdev.Device
	for _, m := range n.table.Mounts() {
		ofPod := path.Base(m.Point) == uid && mountinfo.Within(n.node.PluginsDir(), m.Point) || mountinfo.Within(n.node.PodDir(uid), m.Point)
		if m.FSType != "devtmpfs" || !ofPod {
			continue
		}
		if d, err := n.inspector.Finder.Sys.Resolve(strings.TrimPrefix(m.Root, "/")); err == nil {
			devices = append(devices, d)
		}
	}
	return n.inspector.withStackedDevices(devices...)
}

// reason says why a device belongs to a volume of the pod; empty: nothing shows that it does.
func (v *podVolumes) reason(c *Usage) string {
	for _, d := range v.devices {
		if c.involves(d) {
			return fmt.Sprintf("pod %s has device %s as a raw block volume", v.name, d.Node())
		}
	}
	for _, h := range c.HolderInfos { // by the directory in which the kubelet had the device mounted
		hostPath := h.Origin.HostPath
		place, isVolume := v.node.ParseVolume(hostPath)
		switch {
		case hostPath == "":
		case mountinfo.Within(v.node.PodDir(v.uid), hostPath):
			return fmt.Sprintf("directory %q is that of a volume of pod %s", hostPath, v.name)
		case isVolume && slices.Contains(v.persistentVolumes, place.Name):
			return fmt.Sprintf("directory %q is that of PersistentVolume %q, which pod %s has", hostPath, place.Name, v.name)
		case slices.Contains(v.points, hostPath):
			return fmt.Sprintf("directory %q is where the kubelet mounts a PersistentVolume of pod %s for the node", hostPath, v.name)
		}
	}
	return ""
}
