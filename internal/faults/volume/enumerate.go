// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// enumerator lists volumes. It asks no file system that may hang.
type enumerator struct {
	host     *hostMounts
	scope    mountstate.Scope
	seen     *mountstate.Survey
	pods     kubelet.PodCache           // nil if pods are not known
	podNames map[string]kubelet.PodName // by UID, for people; empty if all pods are known
	disks    *diskUse                   // nil until the first volume on a disk
}

// podByUID is the pod as it is known; nil if it is not.
func (e *enumerator) podByUID(uid string) *corev1.Pod {
	if e.pods == nil {
		return nil
	}
	return e.pods.PodByUID(uid)
}

// faultPod names a pod for people, as far as it is known.
func (e *enumerator) faultPod(uid string) fault.Pod {
	if pod := e.podByUID(uid); pod != nil {
		return fault.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: uid}
	}
	name := e.podNames[uid]
	return fault.Pod{Namespace: name.Namespace, Name: name.Name, UID: uid}
}

// eachPod calls fn for each pod in scope that has a directory, inside the kubelet's namespace.
func (e *enumerator) eachPod(ctx context.Context, fn func(uid string)) error {
	uids := e.scope.PodUIDs
	if len(uids) == 0 {
		var err error
		if uids, err = e.host.node.PodUIDs(ctx); err != nil {
			return err
		}
	}
	return e.host.node.Do(ctx, func() error {
		for _, uid := range uids {
			fn(uid)
		}
		return ctx.Err()
	})
}

// eachPlace calls fn for each place of a volume of these pods, inside the kubelet's namespace. A pod has none if its directory goes, or is on a
// file system that may hang: another look says so.
func (e *enumerator) eachPlace(ctx context.Context, fn func(place kubelet.Volume)) error {
	return e.eachPod(ctx, func(uid string) {
		places, err := e.host.node.PodVolumes(uid)
		if err != nil {
			return
		}
		for _, place := range places {
			fn(place)
		}
	})
}

// enumerate lists the volumes that are mounted, those that the kubelet keeps first.
func (e *enumerator) enumerate(ctx context.Context) ([]*Volume, error) {
	for point := range e.host.visibleMounts {
		if place, ok := e.host.node.ParseVolume(point); ok && e.podByUID(place.PodUID) == nil {
			e.podNames, _ = e.host.node.PodNames(ctx) // for people alone
			break
		}
	}
	var volumes []*Volume
	err := e.host.node.Do(ctx, func() error {
		for point, m := range e.host.visibleMounts {
			place, ok := e.host.node.ParseVolume(point)
			// A directory that another program keeps, was bound there, and was deleted since, hurts the pod on every file system.
			lostName := m.Deleted() && !kubelet.FillsItself(place.Plugin)
			if ok && e.scope.Includes(place.PodUID, place.Name) && (place.Plugin == kubelet.CSIPlugin || mountns.MayFail(m.Major, m.FSType) || lostName) {
				volumes = append(volumes, e.volumeAt(place, e.host.withNamespace(m)))
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	volumes = slices.Concat(volumes, e.listInside(), e.listBinds())
	slices.SortFunc(volumes, func(a, b *Volume) int {
		return cmp.Or(cmp.Compare(a.Pod.UID, b.Pod.UID), cmp.Compare(a.Plugin, b.Plugin), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Point, b.Point))
	})
	linked, err := e.listLinked(ctx)
	if err != nil {
		return nil, err
	}
	hostPaths, err := e.listHostPaths(ctx)
	return slices.Concat(volumes, linked, hostPaths), err
}

// listBinds lists the subPath binds on FUSE of pods that are being deleted whose volume is not mounted any more. Each other bind is found with
// its volume.
func (e *enumerator) listBinds() (volumes []*Volume) {
	mounted := sync.OnceValue(func() map[kubelet.Volume]bool {
		all := map[kubelet.Volume]bool{} // without the plugin
		for point := range e.host.visibleMounts {
			if v, ok := e.host.node.ParseVolume(point); ok {
				all[kubelet.Volume{PodUID: v.PodUID, Name: v.Name}] = true
			}
		}
		return all
	})
	for point, m := range e.host.visibleMounts {
		if !strings.HasPrefix(m.FSType, "fuse") {
			continue
		}
		bind, ok := e.host.node.ParseSubPath(point)
		of := kubelet.Volume{PodUID: bind.PodUID, Name: bind.Volume}
		if !ok || !e.scope.Includes(of.PodUID, of.Name) || podinfo.StateOf(e.podByUID(of.PodUID)) != fault.PodDeleting || mounted()[of] {
			continue
		}
		reason := fmt.Sprintf("the mount of volume %q has gone before the subPath bind of container %q", bind.Volume, bind.Container)
		volumes = append(volumes, &Volume{
			Pod: e.faultPod(of.PodUID), Name: of.Name, SpecName: e.nameInSpec(of), Point: point, Mount: e.host.withNamespace(m),
			Origin: Origin{BindOf: bind.Container}, spec: podSpec{pod: e.podByUID(of.PodUID)}, HiddenMounts: e.host.hiddenBelow(m),
			MountsUpon:     len(e.host.table.Children(m.ID)),
			NoRecordReason: reason, NoStagingReason: reason,
		})
	}
	return volumes
}

// volumeAt makes the volume that the kubelet keeps at a place, with the mount that is visible there. It reads the
// kubelet's records, and is called inside the kubelet's namespace.
func (e *enumerator) volumeAt(place kubelet.Volume, found mountns.Mount) *Volume {
	volume := &Volume{
		Pod: e.faultPod(place.PodUID), Plugin: place.Plugin, Name: place.Name, Point: e.host.node.VolumePoint(place), Mount: found,
		spec: podSpec{pod: e.podByUID(place.PodUID)},
	}
	volume.HiddenMounts, volume.SpecName = e.host.hiddenBelow(found.Mount), e.nameInSpec(place)
	if found.ID != 0 {
		volume.MountsUpon = len(e.host.table.Children(found.ID))
	}
	if kubelet.FillsItself(volume.Plugin) {
		volume.setInside()
		return volume
	}
	if volume.Plugin != kubelet.CSIPlugin {
		volume.NoRecordReason = "the kubelet writes down nothing about a volume of plugin " + volume.Plugin
		volume.NoStagingReason = "a volume of plugin " + volume.Plugin +
			" is mounted for the pod alone, so there is nothing that could take its place"
		if volume.Plugin == kubelet.LocalPlugin {
			volume.Mismatch.Covered = e.host.coverOf(found.Mount)
		}
		return volume
	}
	record, err := kubelet.ReadVolumeRecordAt(e.host.table, volume.Point)
	if err != nil {
		volume.NoRecordReason = err.Error()
		volume.NoStagingReason = "the volume is unknown: " + err.Error()
		return volume
	}
	volume.Record = record
	if volume.Staging, volume.NoStagingReason = e.findStaging(record); volume.Staging != nil {
		volume.Staging.location = e.host.locateInStaged(volume, volume.Staging.Mount, volume.Staging.Point)
	} else {
		volume.Mismatch.UnstagedDir = e.host.unstagedDir(record, found.Mount)
	}
	volume.Mismatch.AlsoFor = e.otherVolume(volume)
	return volume
}

// nameInSpec is the name in the pod's spec of a volume that the kubelet calls by its PersistentVolume's.
func (e *enumerator) nameInSpec(place kubelet.Volume) string {
	pod := e.podByUID(place.PodUID)
	if pod == nil {
		return ""
	}
	name, _ := podinfo.ClaimVolume(pod, place.Name, func(container string, index int) bool {
		_, bound := e.host.visibleMounts[e.host.node.SubPathPoint(kubelet.SubPath{PodUID: place.PodUID, Volume: place.Name, Container: container, Index: index})]
		return bound
	})
	return name
}

// findStaging finds the mount that the driver has made for the whole node: at one of the places that the kubelet has it
// made at, with a record beside it that names the same volume.
func (e *enumerator) findStaging(of *kubelet.VolumeRecord) (s *Staging, reason string) {
	points := e.host.node.StagingPoints(of.Driver, of.Handle, of.PersistentVolume)
	reason = "the driver has nothing mounted for the whole node at " + strings.Join(points, " or ")
	var found []*Staging
	for _, point := range points {
		mount, ok := e.host.visibleMounts[point]
		if !ok {
			continue
		}
		record, err := kubelet.ReadVolumeRecordAt(e.host.table, point)
		switch {
		case err != nil:
			reason = fmt.Sprintf("the volume at staging path %q is unknown: %v", point, err)
		case !record.Same(of):
			reason = fmt.Sprintf("the staging path %q is of %s, and this is %s", point, record, of)
		default:
			found = append(found, &Staging{Point: point, Mount: e.host.withNamespace(mount)})
		}
	}
	if len(found) == 0 {
		return nil, reason
	}
	for _, other := range found[1:] {
		if deviceOf(other.Mount.Mount) != deviceOf(found[0].Mount.Mount) || other.Mount.Root != found[0].Mount.Root {
			return nil, fmt.Sprintf("%q and %q are both staging paths of this volume, and different directories are mounted there",
				found[0].Point, other.Point)
		}
	}
	return found[0], ""
}

// listHostPaths lists the hostPath volumes of the node's pods that lie on file systems which may hang or fail, but
// for the node's root.
func (e *enumerator) listHostPaths(ctx context.Context) (volumes []*Volume, err error) {
	if e.pods == nil {
		return nil, nil
	}
	err = e.eachPod(ctx, func(uid string) {
		pod := e.podByUID(uid)
		if pod == nil || podinfo.Ended(pod) { // nothing mounts it any more
			return
		}
		for _, spec := range pod.Spec.Volumes {
			if spec.HostPath == nil || !e.scope.Includes(uid, spec.Name) {
				continue
			}
			name := path.Clean(spec.HostPath.Path)
			point := e.host.resolveLinks(name)
			m, ok := e.host.table.On(point)
			if !ok || !mountns.MayFail(m.Major, m.FSType) || m.Point == "/" {
				continue
			}
			v := &Volume{
				MountsUpon: len(e.host.table.Children(m.ID)), spec: podSpec{pod: pod, hostPath: spec.HostPath},
				Pod: e.faultPod(string(pod.UID)), Plugin: HostPathPlugin, Name: spec.Name, Point: point, Mount: e.host.withNamespace(m),
				NoRecordReason:  "it is a hostPath of the pod's spec",
				NoStagingReason: fmt.Sprintf("nothing that could have died is mounted at %q or above it", point),
				HiddenMounts:    e.host.hiddenBelow(m),
			}
			if point != name {
				v.Link = name
			}
			volumes = append(volumes, v)
		}
	})
	return volumes, err
}

// maxInside bounds how many mounts inside the volumes of one pod are looked at: a workload with Bidirectional propagation
// may make any number of them.
const maxInside = 64

// listInside lists the mounts on file systems that may hang which workloads have made inside volumes. Any type can keep a
// pod from going that is being deleted.
func (e *enumerator) listInside() (volumes []*Volume) {
	inside := map[string]kubelet.Volume{}
	for point, m := range e.host.visibleMounts {
		place, ok := e.host.node.ParseInsideVolume(point)
		if ok && (mountns.MayHang(m.FSType) || podinfo.StateOf(e.podByUID(place.PodUID)) == fault.PodDeleting) && e.scope.Includes(place.PodUID, place.Name) {
			inside[point] = place
		}
	}
	count := map[string]int{} // by UID of the pod
	for _, point := range slices.Sorted(maps.Keys(inside)) {
		m, place := e.host.visibleMounts[point], inside[point]
		if count[place.PodUID]++; count[place.PodUID] > maxInside {
			if count[place.PodUID] == maxInside+1 {
				e.seen.Unknown.AddGap(fmt.Sprintf("mounts inside volumes of pod %q beyond the first %d", place.PodUID, maxInside),
					"there are more of them than are looked at")
			}
			continue
		}
		v := &Volume{
			Pod: e.faultPod(place.PodUID), Plugin: place.Plugin, Name: place.Name, Point: point, Mount: e.host.withNamespace(m),
			spec: podSpec{pod: e.podByUID(place.PodUID)}, HiddenMounts: e.host.hiddenBelow(m),
			MountsUpon: len(e.host.table.Children(m.ID)),
		}
		v.setInside()
		volumes = append(volumes, v)
	}
	return volumes
}

// setInside notes that a workload has made the mount of the volume.
func (v *Volume) setInside() {
	v.Origin.Inside = true
	v.NoRecordReason = fmt.Sprintf("a workload has made the mount inside volume %q of the pod", v.Name)
	v.NoStagingReason = "no driver mounts it again: " + v.NoRecordReason
}

// hiddenBelow lists the mounts at the place of a mount that it hides, the lowest first.
func (h *hostMounts) hiddenBelow(m mountinfo.Mount) []mountinfo.Mount {
	hidden := h.table.Stack(m)[1:]
	slices.Reverse(hidden)
	return hidden
}

// Some CSI drivers publish a volume as a symbolic link to a mount of their own, such as those of Fluid and of IBM Storage Scale. The container
// runtime follows the link when it makes the mount of a container. So the volume is the path that the link leads to, as a hostPath is.

// listLinked lists the volumes that are symbolic links which lead to a mount. A link to the node's own disk is not judged: the driver has unmounted its
// file system, or never mounted it.
func (e *enumerator) listLinked(ctx context.Context) (volumes []*Volume, err error) {
	err = e.eachPlace(ctx, func(place kubelet.Volume) {
		to := e.linkAt(place)
		if to == "" || !e.scope.Includes(place.PodUID, place.Name) {
			return
		}
		point := e.host.node.VolumePoint(place)
		m, ok := e.host.table.On(to)
		if own, known := e.host.table.On(point); !ok || m.Point == "/" || known && m.ID == own.ID {
			if pod := e.podByUID(place.PodUID); pod == nil || podinfo.StateOf(pod) != fault.PodDeleting && !podinfo.Ended(pod) {
				e.seen.Unknown.AddPlace(mountstate.Place{Pod: e.faultPod(place.PodUID), Volume: place.Name, Point: point, Reason: fmt.Sprintf(
					"the driver has made a symbolic link to %q there, and nothing is mounted at that path or above it: what is written there does not get "+
						"into the volume", to)})
			}
			return
		}
		v := e.volumeAt(place, e.host.withNamespace(m))
		v.Point, v.Link, v.spec.hostPath = to, point, linkedPath(to)
		v.Staging, v.Mismatch.UnstagedDir = nil, ""
		v.NoStagingReason = fmt.Sprintf("the driver has made a symbolic link at %q to %q, so there is no mount of the kubelet's to replace", point, to)
		volumes = append(volumes, v)
	})
	return volumes, err
}

// linkAt is the path that the symbolic link of a driver at a place leads to; empty if there is none.
func (e *enumerator) linkAt(place kubelet.Volume) string {
	if place.Plugin != kubelet.CSIPlugin || place.Block {
		return ""
	}
	point := e.host.node.VolumePoint(place)
	if _, mounted := e.host.visibleMounts[point]; mounted {
		return ""
	}
	return kubelet.Symlink(point)
}

// linkedPath has the runtime's demand on a path that a link leads to: that it is there.
func linkedPath(to string) *corev1.HostPathVolumeSource {
	directory := corev1.HostPathDirectory
	return &corev1.HostPathVolumeSource{Path: to, Type: &directory}
}
