// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// BadSources looks for what the containers of a pod that are not started mount and cannot get: the path of a hostPath,
// what a subPath in it names and nothing is bound for, or the directory of a volume that the kubelet makes. container
// narrows it to one container; empty means all of them. Only what a lookup proves is reported: one that does not leave
// the volume, and does not ask a file system that may hang. A source that a start makes counts only once it should be
// there: a container that waits for its image has no fault yet. A pod that is over, or goes, has none.
func BadSources(ctx context.Context, node *kubelet.Node, pod *corev1.Pod, container string) ([]fault.Finding, error) {
	return new(Lookups).ask(ctx, podSources{node, pod, container})
}

// podSources is whose sources are looked for.
type podSources struct {
	node      *kubelet.Node
	pod       *corev1.Pod
	container string // empty: all
}

// containers are those that are not started and will be.
func (p podSources) containers() []string {
	if podinfo.Ended(p.pod) || p.pod.DeletionTimestamp != nil {
		return nil
	}
	return podinfo.Unstarted(p.pod, p.container)
}

// containerBadSources is BadSources of one container, inside the namespace.
func containerBadSources(paths pathLookup, node *kubelet.Node, pod *corev1.Pod, container string) (found []fault.Finding) {
	status, _ := podinfo.ContainerStatus(pod, container)
	for _, v := range podinfo.VolumesOf(pod, container) {
		finding := fault.Finding{Pod: podinfo.PodOf(pod), Container: container, Volume: v.Name, Details: podinfo.DetailsOf(pod, container)}
		switch {
		case v.HostPath != nil:
			at, err := paths.statHostPath(v.HostPath.Path)
			finding.Code, finding.Evidence = judgeHostPath(v, startProgressOf(pod, container, v), at, err)
		case podinfo.KubeletPlugin(v) != "" && volumesAreUp(status):
			if source := node.VolumeDir(string(pod.UID), podinfo.KubeletPlugin(v), v.Name); paths.pathMissing(source) {
				finding.Code, finding.Evidence = fault.MissingBindSource, []string{missingMessage(v.Name, source)}
			}
		}
		if finding.Code != "" {
			found = append(found, finding)
		}
	}
	if len(startRefusals(status)) > 0 { // the kubelet makes them at a start
		found = append(found, findMissingSubPaths(paths, node, pod, container)...)
	}
	return found
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

// findMissingSubPaths looks for the subPaths of hostPath volumes that are not there, and have not been bound.
func findMissingSubPaths(paths pathLookup, node *kubelet.Node, pod *corev1.Pod, container string) (found []fault.Finding) {
	for _, expected := range podinfo.SubPathMounts(pod) {
		place := kubelet.SubPath{PodUID: string(pod.UID), Volume: expected.Volume.Name, Container: expected.Container, Index: expected.Index}
		if expected.Container != container || expected.Volume.HostPath == nil || !paths.pathMissing(node.SubPathPoint(place), mount.ErrNotMounted) {
			continue
		}
		name := podinfo.SubPathName(pod, expected)
		if name == "" || !paths.missingInVolume(target{node: node, pod: pod, place: place, expected: expected}, name) {
			continue
		}
		found = append(found, fault.Finding{
			Code: fault.MissingBindSource, Pod: podinfo.PodOf(pod), Container: container, Volume: expected.Volume.Name,
			Details: podinfo.DetailsOf(pod, container),
			Evidence: []string{
				fmt.Sprintf("%q in %q is to be mounted at %q: nothing is there", name, expected.Volume.HostPath.Path, expected.Mount.MountPath),
				"at a start the kubelet makes an empty directory of that name, where it can",
			},
		})
	}
	return found
}

// subPathMissing reports whether the volume is there and has no such entry. Nothing but a local file system is asked.
func (s target) subPathMissing(name string) bool {
	volume, err := s.openVolume()
	if err != nil {
		return false
	}
	defer volume.dir.Close()
	if !volume.isLocal() {
		return false
	}
	_, err = volume.statName(name)
	return errors.Is(err, sys.ENOENT)
}

// pathIsMissing reports whether nothing is at a path, or the lookup gives one of the errors in or.
func pathIsMissing(source string, or ...error) bool {
	if source == "" {
		return false
	}
	_, err := mount.Inspect(path.Clean(source))
	return slices.ContainsFunc(append(or, sys.ENOENT), func(target error) bool { return errors.Is(err, target) })
}
