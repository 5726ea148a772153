// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
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

// wrongKinds looks for volumeMounts that are of another kind than their place in the image: the source is seen, and the
// runtime refused the container for that mount. The image cannot be seen from here, so the runtime's refusal stands for it.
func (c containerSources) wrongKinds() (found []fault.Finding) {
	mounts := podinfo.VolumeMounts(c.pod, c.name)
	fields := c.refusedForKind(mounts)
	for i, m := range mounts {
		source, bound := "", (*target)(nil)
		if fields[i] != "" {
			source, bound = c.sourceOf(i, m)
		}
		kind, other := "", "directory"
		switch {
		case source == "":
		case bound != nil, strings.HasPrefix(source, c.node.PodDir(string(c.pod.UID))+"/"):
			kind = c.paths.kindOf(source, bound)
		default:
			if at, err := c.paths.statHostPath(source); err == nil {
				kind = describeKind(at)
			}
		}
		switch kind {
		case "": // it could not be seen
			continue
		case directoryKind.noun:
			other = "file"
		case fileKind.noun:
			kind = "file"
		}
		found = append(found, c.finding(fault.SourceTypeMismatch, m.Name,
			fmt.Sprintf("the source of volumeMounts[%d] is there and is a %s; the image may have a %s at %q", i, kind, other, m.MountPath),
			"the container was refused, as "+fields[i]+" has it, because the runtime could not mount the one onto the other"))
	}
	return found
}

// refusedForKind gives the volumeMounts, by their index, for which the container was refused, or never ran, because one of
// source and mount path is a file and the other a directory, each with the part of the status that says so. The kubelet or
// the runtime wrote that: the output of a container, or of its hooks, does not count. The message must name the mount path,
// or no mount path and the source of one mount alone, so one mount is not blamed for another.
func (c containerSources) refusedForKind(mounts []corev1.VolumeMount) map[int]string {
	fields := map[int]string{}
	for _, r := range startRefusals(c.status) {
		text := strings.ToLower(strings.Join(strings.Fields(r.message), " "))
		has := func(phrase string) bool { return strings.Contains(text, phrase) }
		if !slices.ContainsFunc(mountPhrases, has) || !slices.ContainsFunc(kindPhrases, has) {
			continue
		}
		var byPath, bySource []int
		for i, m := range mounts {
			at := path.Join("/", m.MountPath)
			if containsPath(r.message, at) || strings.Contains(r.message, "`"+at[1:]+"`") || // as it is in the container, or as crun writes it
				slices.ContainsFunc(rootDirs, func(root string) bool { return containsPathEnd(r.message, root+at) }) {
				byPath = append(byPath, i)
				continue
			}
			source, _ := c.sourceOf(i, m)
			ofPod := "/pods/" + string(c.pod.UID) + "/" // below the kubelet's root, which it may know by another path
			if _, place, ok := strings.Cut(source, ofPod); ok && containsPathEnd(r.message, ofPod+place) || !ok && source != "" && containsPath(r.message, source) {
				bySource = append(bySource, i)
			}
		}
		if len(byPath) == 0 && len(bySource) == 1 {
			byPath = bySource
		}
		for _, i := range byPath {
			if fields[i] == "" {
				fields[i] = r.statusField
			}
		}
	}
	return fields
}

// rootDirs are how the paths of a container's root directory end. A runtime that says that one of source and mount path is a file and the other
// a directory has a phrase about mounts and one about kinds in its message.
var (
	rootDirs     = []string{"/rootfs", "/merged", "/fs"}
	mountPhrases = []string{"mount", "subpath", "rootfs", "createcontainerconfigerror", "generate spec"}
	kindPhrases  = []string{"not a directory", "is a directory", "onto a file", "onto a directory"}
)

// sourceOf is where the source of a mount lies, and the place of its bind if the mount has a subPath. Empty: that is not
// known.
func (c containerSources) sourceOf(index int, m corev1.VolumeMount) (name string, bound *target) {
	for _, expected := range podinfo.SubPathMounts(c.pod) {
		if expected.Container == c.name && expected.Index == index {
			bound := c.target(expected)
			return c.node.SubPathPoint(bound.place), &bound
		}
	}
	for _, v := range c.pod.Spec.Volumes {
		switch {
		case v.Name != m.Name:
		case v.HostPath != nil:
			return path.Clean(v.HostPath.Path), nil
		case podinfo.KubeletPlugin(v) != "":
			return c.volumeDir(v), nil
		case podinfo.FromClaim(v):
			return c.claimPoint(), nil
		}
	}
	return "", nil
}

// claimPoint is the place of the volume of the pod's claim. It is known if the pod has one claim, and the kubelet has one directory of a volume
// whose name is not in the pod's spec.
func (c containerSources) claimPoint() string {
	all, known := c.paths.volumesOf(c.node, string(c.pod.UID))
	volumes := slices.DeleteFunc(slices.Clone(all), func(have kubelet.Volume) bool {
		return slices.ContainsFunc(c.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == have.Name && !podinfo.FromClaim(v) })
	})
	if !known || len(volumes) != 1 || len(podinfo.Claims(c.pod)) != 1 {
		return ""
	}
	return c.node.VolumePoint(volumes[0])
}

// statWithoutLinks looks at the entry at a path with no symbolic link in it. A file system that may hang is not asked.
func statWithoutLinks(view mountns.View, name string) (sys.Stat, error) {
	fd, err := view.LookupNotHanging(name)
	if err != nil {
		return sys.Stat{}, err
	}
	defer fd.Close()
	return fd.Stat(sys.StatType)
}
