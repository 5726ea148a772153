// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// Mount is a mount of the kubelet's table at its root, or below.
type Mount struct {
	Point  string `json:"point"`
	Device string `json:"device"`
	FSType string `json:"fsType"`
	// Hidden is whether a lookup of its path does not reach it: another mount lies on it, or on the way to it.
	Hidden bool `json:"hidden,omitempty"`
	// Kept is whether it is hidden, and no other mount shows the file system of its block device.
	Kept bool `json:"kept,omitempty"`
	// Deleted is whether its directory or file has lost its name.
	Deleted bool `json:"deleted,omitempty"`
	// ReadOnly is whether nothing can be written by way of it. A tmpfs counts that is read-only itself.
	ReadOnly bool `json:"readOnly,omitempty"`
}

// Class says why a mount is there.
type Class string

// Classes of mounts. Each mount is in one.
const (
	Wanted   Class = "wanted"   // a pod wants it
	Inside   Class = "inside"   // it lies in a wanted volume: its driver's or the workload's own
	Drivers  Class = "driver"   // a driver's own, below the directory of the plugins
	Kubelets Class = "kubelet"  // the kubelet's own, of no pod
	Hidden   Class = "hidden"   // another mount lies on it, or on the way to it
	LeftOver Class = "leftOver" // the pod that wanted it is proven to be over
	Unproven Class = "unproven" // no pod is known to want it, and it is not proven that no pod does
)

// Classified is a mount with its class.
type Classified struct {
	Mount
	// Pod is whose directory it lies in.
	Pod   fault.Pod
	Class Class
	// Reason says why it is unproven.
	Reason string
}

// Reasons for which a mount is unproven.
const (
	reasonNoVolume  = "the spec of its pod has no such volume"
	reasonNoSubPath = "the spec of its pod has no such subPath"
	reasonNoPlace   = "it lies in the directory of a pod, where the kubelet mounts nothing"
	reasonOver      = "its pod has ended, and the kubelet has not taken it down"
	reasonTooMany   = "more volumes of claims are mounted in the directory of the pod than its spec has claims, and which is one too many is not known"
	reasonKept      = "another mount hides it, no path of the node leads to its file system, and so its device cannot be detached"
	reasonNoFile    = "the device file of a raw block volume was deleted, as it is when the device has gone"
	reasonNotStaged = "a volume is mounted here for the whole node, and no pod of this node is known to have it"
)

// Facts are the evidence of the classes of mounts. They can be written down as JSON and classified elsewhere.
type Facts struct {
	// Pods are those with a directory of the kubelet.
	Pods   []Pod   `json:"pods"`
	Links  []Link  `json:"links"`
	Mounts []Mount `json:"mounts"`
}

// Classify puts each mount in one class, in the order of the mounts. The classes LeftOver and, for a mount that was found and could
// not be judged, Unproven come with other looks: see Survey.Account.
func (f *Facts) Classify(l *kubelet.Layout) []Classified {
	c, all := newClassifier(f, l), make([]Classified, len(f.Mounts))
	for i, m := range f.Mounts { // those of pods first: their devices show which staging paths are in use
		all[i] = Classified{Mount: m, Class: Hidden}
		if rest, ok := mountinfo.Below(l.PodsDir(), m.Point); ok {
			c.classifyOfPod(&all[i], rest)
		}
	}
	for i, m := range f.Mounts {
		if _, ok := mountinfo.Below(l.PodsDir(), m.Point); ok || m.Hidden {
			continue
		}
		all[i].Class, all[i].Reason = c.classOfNode(m)
	}
	for i := range all { // the hidden mounts that keep their devices are unproven
		if all[i].Kept {
			all[i].Class, all[i].Reason = Unproven, reasonKept
		}
	}
	return all
}

// subPathPlace is an entry of a container's volumeMounts.
type subPathPlace struct {
	container string
	index     int
}

// podLinks are the links of a pod.
type podLinks struct {
	pod     Pod
	volumes map[string]Link // by the kubelet's name, but for those of claims
	// claims is whether it has a volume whose kubelet's name is not known, and block whether that may be a device.
	claims, block bool
	// wants and has count its claims, and the volumes that are mounted for them.
	wants, has int
	subPaths   map[subPathPlace]string // the kubelet's name of the volume; empty: not known
}

// classifier has the links by their places.
type classifier struct {
	layout *kubelet.Layout
	pods   map[string]*podLinks
	// staged are the staging paths that pods want, devices those of wanted volumes.
	staged, devices map[string]bool
}

// newClassifier sorts the links of the facts by their places, and counts the volumes that are mounted for claims.
func newClassifier(f *Facts, l *kubelet.Layout) *classifier {
	c := &classifier{layout: l, pods: map[string]*podLinks{}, staged: map[string]bool{}, devices: map[string]bool{}}
	for _, pod := range f.Pods {
		c.pods[pod.UID] = &podLinks{pod: pod, volumes: map[string]Link{}, subPaths: map[subPathPlace]string{}}
	}
	for _, link := range f.Links {
		of := c.pods[link.PodUID]
		switch {
		case of == nil: // only forged facts have links of no pod
		case link.Kind == SourceLink:
			for _, point := range link.Points {
				c.staged[point] = true
			}
		case link.Kind == BlockLink:
			of.block = true
		case link.Kind == SubPathLink:
			of.subPaths[subPathPlace{link.Container, link.Index}] = link.Volume
		case link.Kind == ContainerLink: // it is in the namespace of the container
		case link.Volume == "":
			of.claims = true
			of.wants++
		default:
			of.volumes[link.Volume] = link
		}
	}
	for _, m := range f.Mounts {
		if v, ok := l.ParseVolume(m.Point); ok && !m.Hidden && c.pods[v.PodUID] != nil && c.pods[v.PodUID].volumes[v.Name].FromClaim {
			c.pods[v.PodUID].has++
		}
	}
	return c
}

// classifyOfPod classifies a mount at the directory of the pods or below. rest is the way from there.
func (c *classifier) classifyOfPod(m *Classified, rest string) {
	uid, rest, _ := strings.Cut(rest, "/")
	of := c.pods[uid]
	if of == nil {
		of = &podLinks{pod: Pod{Pod: fault.Pod{UID: uid}, Life: LifeUnknown}} // it came while it was looked, or went
	}
	m.Pod = of.pod.Pod
	switch {
	case uid == "":
		m.Pod = fault.Pod{}
		if !m.Hidden {
			m.Class = Kubelets
		}
		return
	case m.Hidden:
		return
	}
	if dir, _, _ := strings.Cut(rest, "/"); dir == "volume-subpaths" {
		m.Class, m.Reason = c.classOfSubPath(of, m.Point, rest)
	} else {
		m.Class, m.Reason = c.classInPod(of, m.Point, dir)
	}
	switch {
	case of.pod.Life == LifeOver && (m.Class == Wanted || m.Class == Inside):
		m.Class, m.Reason = Unproven, reasonOver
	case of.pod.Life == LifeLeaving && m.Class == Unproven: // the kubelet is at it: another look finds the mounts that stay
		m.Class, m.Reason = Inside, ""
	}
	if m.Class == Wanted {
		c.devices[m.Device] = true
	}
}

// classInPod is the class of a mount below the directory of a pod, if that wants all that its links say. dir is the first name on the way from there.
func (c *classifier) classInPod(of *podLinks, point, dir string) (Class, string) {
	known := of.pod.Life == LifeWants // else the directories of the kubelet alone show the wanted volumes
	if v, ok := c.layout.ParseVolume(point); ok {
		switch plain, has := of.plain(v); {
		case known && !has:
			return Unproven, reasonNoVolume
		case plain:
			return Inside, ""
		case known && of.has > of.wants && of.volumes[v.Name].FromClaim:
			return Unproven, reasonTooMany
		}
		return Wanted, ""
	}
	if v, ok := c.layout.ParseInsideVolume(point); ok {
		if _, has := of.plain(v); known && !has {
			return Unproven, reasonNoVolume
		}
		return Inside, ""
	}
	switch {
	case dir != "volumeDevices":
		return Unproven, reasonNoPlace
	case known && !of.block:
		return Unproven, reasonNoVolume
	}
	return Wanted, ""
}

// classOfSubPath is the class of a mount at the place of a subPath bind, or below. rest is the way from the pod's directory.
func (c *classifier) classOfSubPath(of *podLinks, point, rest string) (Class, string) {
	names := strings.SplitN(rest, "/", 5)
	if len(names) < 4 {
		return Unproven, reasonNoPlace
	}
	if len(names) == 5 {
		point = strings.TrimSuffix(point, "/"+names[4])
	}
	s, ok := c.layout.ParseSubPath(point)
	volume, has := of.subPaths[subPathPlace{s.Container, s.Index}]
	switch {
	case !ok:
		return Unproven, reasonNoPlace
	case of.pod.Life == LifeWants && (!has || volume != "" && volume != s.Volume):
		return Unproven, reasonNoSubPath
	case len(names) == 5:
		return Inside, ""
	}
	return Wanted, ""
}

// plain reports whether the place of a volume is a directory and no mount, and whether the pod has the volume.
func (p *podLinks) plain(v kubelet.Volume) (plain, has bool) {
	link, named := p.volumes[v.Name]
	own := kubelet.FillsItself(v.Plugin)
	switch {
	case named && (link.Plugin == v.Plugin || link.Plugin == "" && !own):
		return link.Plain, true
	case p.claims && !own:
		return false, true
	}
	return isPlain(v.Plugin, mediumUnknown), false
}

// classOfNode is the class of a mount that lies in the directory of no pod.
func (c *classifier) classOfNode(m Mount) (Class, string) {
	rest, ok := mountinfo.Below(c.layout.PluginsDir(), m.Point)
	if !ok || rest == "" {
		return Kubelets, ""
	}
	staging, inside := strings.CutPrefix(rest, kubelet.CSIPlugin+"/")
	if before, after, ok := strings.Cut(staging+"/", "/globalmount/"); inside && ok && before != "" {
		if point := strings.TrimSuffix(m.Point, "/"+strings.TrimSuffix(after, "/")); after != "" && point != m.Point {
			return Inside, ""
		}
		if c.staged[m.Point] || c.devices[m.Device] {
			return Wanted, ""
		}
		return Unproven, reasonNotStaged
	}
	switch of := c.pods[path.Base(m.Point)]; { // the kubelet and CSI drivers name the file of a device by the pod
	case of != nil && m.Deleted && (of.pod.Life == LifeWants || of.pod.Life == LifeUnknown):
		return Unproven, reasonNoFile
	case of != nil && (of.block || of.pod.Life != LifeWants):
		return Wanted, ""
	case strings.HasPrefix(rest, "kubernetes.io/local-volume/"):
		return Kubelets, ""
	case strings.HasPrefix(rest, "kubernetes.io/") && c.devices[m.Device]:
		return Wanted, ""
	}
	return Drivers, ""
}

// Classes count mounts by their classes. The counts add up.
type Classes struct {
	Mounts   int `json:"mounts"`
	Wanted   int `json:"wanted"`
	Inside   int `json:"insideVolumes"`
	Drivers  int `json:"drivers"`
	Kubelet  int `json:"kubelet"`
	Hidden   int `json:"hidden"`
	LeftOver int `json:"leftOver"`
	// Unknown counts the mounts that no pod is known to want, and those whose own state could not be judged.
	Unknown int `json:"unknown"`
}

// Judged are the mounts with their classes after all looks: those of pods that are proven to be over, those that are left over, and those
// that were found and could not be judged. It is nil if mounts were not looked at.
func (s *Survey) Judged() []Classified {
	unjudged, over := map[string]bool{}, map[string]bool{}
	for _, p := range s.Unknown.Places {
		if p.Namespace == "" && p.Container == "" {
			unjudged[p.Point] = true
		}
	}
	for _, uid := range s.Over {
		over[uid] = true
	}
	all := slices.Clone(s.Mounts)
	for i, m := range all {
		switch {
		case m.Pod.UID != "" && over[m.Pod.UID], m.Pod.UID == "" && m.Class != Hidden && slices.Contains(s.LeftOver, m.Point):
			all[i].Class, all[i].Reason = LeftOver, ""
		case m.Class != Hidden && unjudged[m.Point]:
			all[i].Class = Unproven
		}
	}
	return all
}

// Account counts the mounts by class, and adds the places of the unproven ones to the unknown places, each reason once for a
// pod. It is called once all looks are merged. It returns nil if mounts were not looked at.
func (s *Survey) Account() *Classes {
	if s.Mounts == nil {
		return nil
	}
	type group struct{ pod, reason string }
	groups, order := map[group][]Classified{}, []group(nil)
	counts := map[Class]int{}
	for _, m := range s.Judged() {
		counts[m.Class]++
		if m.Class != Unproven || m.Reason == "" { // without a reason, its place is unknown already
			continue
		}
		g := group{m.Pod.UID, m.Reason}
		if groups[g] == nil {
			order = append(order, g)
		}
		groups[g] = append(groups[g], m)
	}
	for _, g := range order {
		of := groups[g]
		reason := g.reason
		if more := len(of) - 1; more > 0 {
			reason += fmt.Sprintf(", and %d more like it", more)
		}
		s.Unknown.Places = append(s.Unknown.Places, Place{Pod: of[0].Pod, Point: of[0].Point, Reason: reason})
	}
	return &Classes{
		Mounts: len(s.Mounts), Wanted: counts[Wanted], Inside: counts[Inside], Drivers: counts[Drivers], Kubelet: counts[Kubelets],
		Hidden: counts[Hidden], LeftOver: counts[LeftOver], Unknown: counts[Unproven],
	}
}
