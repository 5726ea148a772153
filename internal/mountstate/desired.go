// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/podinfo"
)

// Grace is the time that a kubelet has for the mounts of a pod, after its grace period and the end of its last container.
const Grace = 30 * time.Second

// PodSource is the knowledge of all sources about a pod that has a directory of the kubelet.
type PodSource struct {
	// UID is that of the directory. A mirror pod has another one.
	UID string
	// Spec is nil if no source has the pod.
	Spec *corev1.Pod
	// Records are those of its CSI volumes.
	Records []*kubelet.VolumeRecord
	// Places are the volumes for which the kubelet has a place in the directory. Unlisted is why they are not known.
	Places   []kubelet.Volume
	Unlisted string
	// Symlinks are the places at which a driver has made a symbolic link, with the paths that they lead to.
	Symlinks map[string]string
	// Lacks are the places of volumes without a file that the kubelet has to have written, with the reasons.
	Lacks map[string]string
	// Mounts are those of its running containers, by the container runtime's records.
	Mounts []ContainerMount
}

// SourcesOf gives each directory of a pod the spec of its pod. The UID of a directory is that of the pod or, if it is static, the digest of
// its file. An API server has a mirror pod of a static pod, and an annotation of it has the digest. Each user may write such an annotation.
// So it counts only for a UID that no API server gives, and only if one mirror pod has it.
func SourcesOf(uids []string, pods []*corev1.Pod) []PodSource {
	own, mirrors := map[string]*corev1.Pod{}, map[string][]*corev1.Pod{}
	for _, pod := range pods {
		own[string(pod.UID)] = pod
		if digest := pod.Annotations[corev1.MirrorPodAnnotationKey]; digestUID.MatchString(digest) {
			mirrors[digest] = append(mirrors[digest], pod)
		}
	}
	sources := make([]PodSource, len(uids))
	for i, uid := range uids {
		sources[i] = PodSource{UID: uid, Spec: own[uid]}
		if of := mirrors[uid]; own[uid] == nil && len(of) == 1 {
			sources[i].Spec = of[0]
		}
	}
	return sources
}

// digestUID is the UID that a kubelet gives to a static pod.
var digestUID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Life is how far a pod is.
type Life string

// Lives of pods.
const (
	LifeWants   Life = "wants"   // it runs, or it is to run
	LifeLeaving Life = "leaving" // it is being deleted
	LifeOver    Life = "over"    // its phase says that it has ended, and the kubelet had its time
	LifeUnknown Life = "unknown" // no source knows it: nothing of it is left over
)

// Pod is a pod that has a directory of the kubelet. Its UID is that of the directory.
type Pod struct {
	fault.Pod
	Life Life `json:"life"`
	// Places, Unlisted, Symlinks and Lacks are those of the source.
	Places   []kubelet.Volume  `json:"places,omitempty"`
	Unlisted string            `json:"unlisted,omitempty"`
	Symlinks map[string]string `json:"symlinks,omitempty"`
	Lacks    map[string]string `json:"lacks,omitempty"`
}

// LinkKind is the kind of a link.
type LinkKind string

// Kinds of links.
const (
	SourceLink  LinkKind = "source"  // a staging path of a volume
	VolumeLink  LinkKind = "volume"  // the place of a volume in the directory of its pod
	BlockLink   LinkKind = "block"   // the device files of raw block volumes
	SubPathLink LinkKind = "subPath" // the place of a subPath bind
	// ContainerLink is a mount that the container runtime has made in a container.
	ContainerLink LinkKind = "container"
)

// Link is one mount, or several, that a pod wants.
type Link struct {
	Kind   LinkKind `json:"kind"`
	PodUID string   `json:"podUID"`
	// Plugin is empty if the spec does not say which it is.
	Plugin string `json:"plugin,omitempty"`
	// Volume is the kubelet's name. It is empty for a claim: then it is the name of a PersistentVolume, which the spec does not have.
	Volume    string `json:"volume,omitempty"`
	Container string `json:"container,omitempty"`
	// Index is the position in the container's volumeMounts.
	Index int `json:"index,omitempty"`
	// Points are the places of a source.
	Points []string `json:"points,omitempty"`
	// Plain is whether the place is a directory, and no mount. Either is whether it is not known which of them.
	Plain  bool `json:"plain,omitempty"`
	Either bool `json:"either,omitempty"`
	// Spreads is whether a container has it with Bidirectional, so that the container's mounts on it come to the node.
	Spreads bool `json:"spreads,omitempty"`
	// Writes is whether a container has the volume to write, by the spec of the pod.
	Writes bool `json:"writes,omitempty"`
	// FromClaim is whether it is the place of one of the claims of the pod, and it is not known of which.
	FromClaim bool `json:"fromClaim,omitempty"`
	// Devices is how many raw block volumes there are to be.
	Devices int `json:"devices,omitempty"`
	// Started is whether the kubelet has to have made it by now: a container was started that waits for it.
	Started bool `json:"started,omitempty"`
	// Mount is that of a container.
	Mount *ContainerMount `json:"mount,omitempty"`
	// Runs is a part of the pod that ran before and after a look which has not found the link, as an earlier look had not.
	Runs string `json:"runs,omitempty"`
}

// Desired returns how far the pods are, and the links that they want. The kubelet's own directory shows the volumes of a pod that no source
// knows. A hostPath volume has no mount of the kubelet, and an image volume that of its container alone.
func Desired(l *kubelet.Layout, sources []PodSource, now time.Time) (pods []Pod, links []Link) {
	for _, s := range sources {
		pod := Pod{fault.Pod{UID: s.UID}, lifeOf(s.Spec, now), s.Places, s.Unlisted, s.Symlinks, s.Lacks}
		if s.Spec != nil {
			pod.Namespace, pod.Name = s.Spec.Namespace, s.Spec.Name
		}
		pods = append(pods, pod)
		first := len(links)
		switch pod.Life {
		case LifeUnknown:
			links = append(links, placeLinks(s, func(kubelet.Volume) bool { return true }, Link{Started: true})...)
		case LifeWants:
			links = append(links, volumeLinks(s)...)
			for _, m := range podinfo.SubPathMounts(s.Spec) {
				links = append(links, Link{Kind: SubPathLink, PodUID: s.UID, Volume: kubeletName(m.Volume), Container: m.Container, Index: m.Index})
			}
		}
		for _, r := range s.Records {
			points := l.StagingPoints(r.Driver, r.Handle, r.PersistentVolume)
			links = append(links, Link{Kind: SourceLink, PodUID: s.UID, Plugin: kubelet.CSIPlugin, Volume: r.PersistentVolume, Points: points})
		}
		if pod.Life == LifeUnknown || pod.Life == LifeWants {
			links = append(links, containerLinks(l, s, links[first:])...)
		}
	}
	return pods, links
}

// volumeLinks are the links of a pod's volumes. Containers have a claim as a file system or as a device. A claim that no container has may be
// either. The directory of the pod shows the names of those that have one of the kubelet's own.
func volumeLinks(s PodSource) (links []Link) {
	mounted, devices := podinfo.UsedVolumes(s.Spec)
	started := podinfo.StartedVolumes(s.Spec)
	named, renamed, up, writes := map[string]bool{}, false, true, true
	block := Link{Kind: BlockLink, PodUID: s.UID, Started: true}
	asDevice := false
	for _, v := range s.Spec.Spec.Volumes {
		if v.HostPath != nil || v.Image != nil || v.Quobyte != nil { // the driver of the last has one mount for the whole node
			continue
		}
		plugin := podinfo.KubeletPlugin(v)
		if name := kubeletName(v); name != "" {
			named[name] = true
		} else if mounted[v.Name] || devices[v.Name] {
			renamed, up, writes = true, up && started[v.Name], writes && podinfo.MayWrite(s.Spec, v)
		}
		device := podinfo.FromClaim(v) && !mounted[v.Name]
		if !device || !devices[v.Name] {
			links = append(links, Link{
				Kind: VolumeLink, PodUID: s.UID, Plugin: plugin, Volume: kubeletName(v), Plain: isPlain(plugin, mediumOf(v)), Started: started[v.Name],
				Spreads: hasBidirectional(s.Spec, v.Name), Writes: podinfo.MayWrite(s.Spec, v),
			})
		}
		if asDevice = asDevice || device; device && devices[v.Name] {
			block.Devices++
			block.Started = block.Started && started[v.Name]
		}
	}
	if asDevice {
		links = append(links, block)
	}
	if renamed {
		links = append(links, placeLinks(s, func(v kubelet.Volume) bool { return !named[v.Name] && !kubelet.FillsItself(v.Plugin) },
			Link{Started: up, FromClaim: true, Writes: writes})...)
	}
	return links
}

// mediumOf is the medium of an emptyDir, and the default one of all other volumes.
func mediumOf(v corev1.Volume) corev1.StorageMedium {
	if v.EmptyDir == nil {
		return corev1.StorageMediumDefault
	}
	return v.EmptyDir.Medium
}

// hasBidirectional reports whether a container has a volume with Bidirectional.
func hasBidirectional(pod *corev1.Pod, volume string) bool {
	return slices.ContainsFunc(podinfo.ContainerNames(pod), func(name string) bool {
		return slices.ContainsFunc(podinfo.VolumeMounts(pod, name), func(m corev1.VolumeMount) bool {
			return m.Name == volume && m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional
		})
	})
}

// placeLinks are links for those of the kubelet's places that are wanted, with the rest of them as like has it. The medium of an emptyDir is not
// known there.
func placeLinks(s PodSource, wanted func(kubelet.Volume) bool, like Link) (links []Link) {
	like.Kind, like.PodUID = VolumeLink, s.UID
	for _, v := range s.Places {
		if !v.Block && wanted(v) {
			like.Plugin, like.Volume, like.Plain = v.Plugin, v.Name, isPlain(v.Plugin, mediumUnknown)
			like.Either = v.Plugin == "kubernetes.io/empty-dir"
			links = append(links, like)
		}
	}
	return links
}

// containerLinks are the mounts of the pod's containers, and the volumes among them that are not among its known links: the runtime's record of a
// container names the place of a volume also if it is of a claim, or if neither a spec nor a directory shows it.
func containerLinks(l *kubelet.Layout, s PodSource, known []Link) (links []Link) {
	volumes := map[string]bool{}
	for _, link := range known {
		volumes[link.Volume] = volumes[link.Volume] || link.Kind == VolumeLink
	}
	var mounts []Link
	for i := range s.Mounts {
		m := &s.Mounts[i]
		link := Link{Kind: ContainerLink, PodUID: s.UID, Container: m.Container, Started: true, Mount: m}
		if v, ok := l.ParseVolume(m.From); ok && v.PodUID == s.UID {
			link.Volume = v.Name
			if !volumes[v.Name] {
				volumes[v.Name] = true
				links = append(links, placeLinks(PodSource{UID: s.UID, Places: []kubelet.Volume{v}}, func(kubelet.Volume) bool { return true }, Link{Started: true})...)
			}
		} else if sub, ok := l.ParseSubPath(m.From); ok && sub.PodUID == s.UID {
			link.Volume = sub.Volume
		}
		mounts = append(mounts, link)
	}
	return append(links, mounts...)
}

// kubeletName is the kubelet's name of a volume, as far as the spec has it.
func kubeletName(v corev1.Volume) string {
	if podinfo.Renamed(v) {
		return ""
	}
	return v.Name
}

// plainPlaces are the volumes for which kubelets make a directory, by plugin and medium, from 1.18 to 1.37. All other volumes are
// mounts: tmpfs for Secrets, projected volumes and those of the downward API.
var plainPlaces = []struct {
	plugin string
	medium corev1.StorageMedium
}{
	{"kubernetes.io/configmap", corev1.StorageMediumDefault},
	{"kubernetes.io/empty-dir", corev1.StorageMediumDefault},
	{"kubernetes.io/git-repo", corev1.StorageMediumDefault},
}

// mediumUnknown is that of a volume whose spec is not known.
const mediumUnknown corev1.StorageMedium = "unknown"

// isPlain reports whether the kubelet makes a directory for such a volume, and mounts nothing there.
func isPlain(plugin string, medium corev1.StorageMedium) bool {
	for _, p := range plainPlaces {
		// Only an emptyDir has a medium.
		if p.plugin == plugin && (p.medium == medium || plugin != "kubernetes.io/empty-dir") {
			return true
		}
	}
	return false
}

// TimeIsOver reports whether a kubelet has had the time to take down a pod that is being deleted: since its grace period has ended, and
// since its last container has. lastEnd is the latter by the container runtime; the zero time if it does not know.
func TimeIsOver(pod *corev1.Pod, lastEnd, now time.Time) bool {
	for _, since := range []time.Time{pod.DeletionTimestamp.Time, podinfo.LastEnd(pod), lastEnd} {
		if now.Before(since.Add(Grace)) {
			return false
		}
	}
	return true
}

// lifeOf is how far a pod is by its own object, nil if there is none.
func lifeOf(pod *corev1.Pod, now time.Time) Life {
	switch {
	case pod == nil:
		return LifeUnknown
	case pod.DeletionTimestamp != nil:
		return LifeLeaving
	case !podinfo.Ended(pod):
		return LifeWants
	}
	if now.Before(podinfo.LastEnd(pod).Add(Grace)) {
		return LifeWants
	}
	return LifeOver
}
