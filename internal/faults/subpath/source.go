// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/podinfo"
)

// BadSources looks for sources that the containers of a pod mount and cannot get. For a container that is not started this is the
// path of a hostPath, an entry that a subPath in it names and nothing is bound for, the directory of a volume that the kubelet makes,
// a file for which the image has a directory or the reverse, and a path that the kubelet itself misses. For each one it is
// an entry that a kubelet which was stopped has left out of a volume. container narrows it to one container; empty means all of them.
// Only a fault that a lookup proves is reported: one that does not leave the volume, and does not ask a file system that may hang. A
// source that a start makes counts only once it should be there: a container that waits for its image has no fault yet. A
// pod that is over, or goes, has none. If claims is nil, no path of a claim is known to be the pod's.
func BadSources(ctx context.Context, node *kubelet.Node, pod *corev1.Pod, container string, claims ClaimPaths) ([]fault.Finding, error) {
	return new(Lookups).ask(ctx, node, []podSources{{node: node, pod: pod, container: container}}, claims)
}

// HasSources reports whether BadSources has anything to look at: a container that is not started, or one that mounts a volume
// which the kubelet writes.
func HasSources(pod *corev1.Pod, container string) bool {
	return len(podinfo.Unstarted(pod, container)) > 0 || slices.ContainsFunc(podinfo.ContainerNames(pod), func(name string) bool {
		return (container == "" || container == name) && slices.ContainsFunc(podinfo.VolumesOf(pod, name), hasWriter)
	})
}

// podSources is whose sources are looked for.
type podSources struct {
	node      *kubelet.Node
	pod       *corev1.Pod
	container string            // empty: all
	claims    map[string]string // where the PersistentVolumes of its claims lie, as far as that was read
}

// containers are those that are looked at.
func (p podSources) containers() []string {
	if podinfo.Ended(p.pod) || p.pod.DeletionTimestamp != nil {
		return nil
	}
	return slices.DeleteFunc(podinfo.ContainerNames(p.pod), func(name string) bool { return p.container != "" && p.container != name })
}

// find looks at the sources of one container, inside the namespace.
func (p podSources) find(paths pathLookup, container string) []fault.Finding {
	c := containerSources{podSources: p, paths: paths, name: container, volumes: map[string]*corev1.Volume{}}
	for i := range p.pod.Spec.Volumes {
		c.volumes[p.pod.Spec.Volumes[i].Name] = &p.pod.Spec.Volumes[i]
	}
	c.status, _ = podinfo.ContainerStatus(p.pod, container)
	unstarted := slices.Contains(podinfo.Unstarted(p.pod, container), container)
	if !unstarted && c.status.State.Running == nil {
		return nil
	}
	found := c.halfWritten()
	if !unstarted {
		return found
	}
	found = append(c.missingVolumes(), found...)
	if len(startRefusals(c.status)) > 0 { // the kubelet makes them at a start
		found = append(found, c.missingSubPaths()...)
		found = append(found, c.wrongKinds()...)
	}
	return append(found, c.reportedPaths(found)...)
}

// containerSources are the sources of the mounts of one container.
type containerSources struct {
	podSources
	paths   pathLookup
	name    string
	status  corev1.ContainerStatus
	volumes map[string]*corev1.Volume // of the pod, by name
}

// finding is one about a volume of the container.
func (c containerSources) finding(code fault.Code, volume string, evidence ...string) fault.Finding {
	details := podinfo.DetailsOf(c.pod, c.name)
	details.Place = fault.PlaceSource
	if v := c.volumes[volume]; volume != "" && (v == nil || podinfo.FromClaim(*v)) {
		if name, ok := podinfo.ClaimVolume(c.pod, volume, func(string, int) bool { return false }); ok && volume != name {
			details.SpecVolume, details.PersistentVolume = name, volume
		}
	}
	return fault.Finding{Code: code, Pod: podinfo.PodOf(c.pod), Container: c.name, Volume: volume, Details: details, Evidence: evidence}
}

// hostPathFinding is finding of the entry that a volume has at subPath. If the volume is a hostPath, that may be a socket.
func (c containerSources) hostPathFinding(code fault.Code, volume, subPath string, evidence ...string) fault.Finding {
	found := c.finding(code, volume, evidence...)
	if v := c.volumes[volume]; v != nil {
		found.Details.Place = podinfo.SourcePlace(code, v.HostPath, subPath, found.Details.Place)
	}
	return found
}

// missingVolumes looks for volumes that are not there, and hostPaths of another kind than the spec demands.
func (c containerSources) missingVolumes() (found []fault.Finding) {
	progress := startProgress{volumesUp: volumesAreUp(c.status), refused: len(startRefusals(c.status)) > 0}
	ofSubPaths := map[string]bool{}
	for _, m := range podinfo.VolumeMounts(c.pod, c.name) {
		if m.SubPath != "" || m.SubPathExpr != "" {
			ofSubPaths[m.Name] = true
		}
	}
	for _, v := range podinfo.VolumesOf(c.pod, c.name) {
		switch {
		case v.HostPath != nil:
			at, err := c.paths.statHostPath(v.HostPath.Path)
			progress.mountsSubPath = ofSubPaths[v.Name]
			if code, evidence := judgeHostPath(v, progress, at, err); code != "" {
				found = append(found, c.hostPathFinding(code, v.Name, "", evidence...))
			}
		case podinfo.KubeletPlugin(v) != "" && volumesAreUp(c.status):
			if source := c.volumeDir(v); c.paths.pathMissing(source) {
				found = append(found, c.finding(fault.MissingBindSource, v.Name, missingMessage(v.Name, source)))
			}
		}
	}
	return found
}

// volumeDir is the directory of a volume whose content the kubelet keeps.
func (p podSources) volumeDir(v corev1.Volume) string {
	return p.node.VolumeDir(string(p.pod.UID), podinfo.KubeletPlugin(v), v.Name)
}

func missingMessage(volume, source string) string {
	return fmt.Sprintf("volume %q is to come from %q: nothing is there", volume, source)
}

// volumesAreUp reports whether the kubelet has got beyond the pod's volumes, which it sets up before it pulls an image.
func volumesAreUp(s corev1.ContainerStatus) bool {
	w := s.State.Waiting
	return s.State.Running != nil || s.State.Terminated != nil ||
		w != nil && !slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, w.Reason)
}

// missingSubPaths looks for the subPaths of hostPath volumes that are not there, and have not been bound.
func (c containerSources) missingSubPaths() (found []fault.Finding) {
	for _, expected := range podinfo.SubPathMounts(c.pod) {
		target := c.target(expected)
		if expected.Container != c.name || expected.Volume.HostPath == nil || !c.paths.pathMissing(c.node.SubPathPoint(target.place), mount.ErrNotMounted) {
			continue
		}
		name := podinfo.SubPathName(c.pod, expected)
		if name == "" || !c.paths.missingInVolume(target, name) {
			continue
		}
		found = append(found, c.hostPathFinding(fault.MissingBindSource, expected.Volume.Name, name,
			fmt.Sprintf("%q in %q is to be mounted at %q: nothing is there", name, expected.Volume.HostPath.Path, expected.Mount.MountPath),
			"at a start the kubelet makes an empty directory of that name, where it can"))
	}
	return found
}

// target is the place of a subPath bind, where the kubelet has the volume by its name in the pod.
func (p podSources) target(expected podinfo.SubPathMount) target {
	place := kubelet.SubPath{PodUID: string(p.pod.UID), Volume: expected.Volume.Name, Container: expected.Container, Index: expected.Index}
	return target{node: p.node, pod: p.pod, place: place, expected: expected}
}
