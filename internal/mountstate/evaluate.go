// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
)

// State is the state of a link.
type State string

// States of links.
const (
	StateRight   State = "right"
	StatePending State = "pending" // the kubelet need not have made it yet, or that is not proven
	StateUnknown State = "unknown" // it is not as it has to be, and no fault follows from that alone
)

// Verdict is the decision about a link.
type Verdict struct {
	State State
	// Point is its place, and Reason says why it is not right.
	Point, Reason string
	// Asks is whether another look is needed, with the proof that the pod runs: see Link.Runs.
	Asks bool
	// Note refines a link that is right. It is empty if there is nothing to add.
	Note string
}

// Reasons for which a link is not right.
const (
	reasonNotMounted  = "nothing is mounted there, though a pod that runs wants a volume there"
	reasonNoDirectory = "the directory of the volume is not there, though its pod runs"
	reasonCovered     = "the volume is mounted, but no path leads to it: another mount lies on the way there"
	reasonNotInside   = "the container has nothing mounted there, though the container runtime has made a mount for it"
	reasonDeletedIn   = "the container has a directory there that was deleted, and the kubelet has another one at %q: what is written there is lost"
	reasonOtherInside = "the container has another file system there than the kubelet has at %q"
	reasonOnDirectory = "a mount lies on the directory of the volume and hides it, and no container of the pod has the volume with Bidirectional"
	reasonTwoLayers   = "two file systems are mounted there, one on the other, and the kubelet makes one: the volume is hidden"
	reasonOtherType   = "a file system of type %q is mounted there, and the kubelet makes a tmpfs"
	reasonReadOnly    = "the tmpfs of the volume is read-only, and the kubelet makes one that can be written"
	reasonUnderInside = "the container has the mount there, but its processes do not reach it: another mount lies on it, or on the way there"
)

// pointMounts says if a mount is at a point, and if a lookup reaches it.
type pointMounts struct {
	mounted, visible bool
	// device and fsType are those of the mount that a lookup reaches, or of any. Several is whether mounts of other devices are there, too.
	device, fsType    string
	several, readOnly bool
}

// linkCase is a link with the facts that rows decide from.
type linkCase struct {
	link   *Link
	layout *kubelet.Layout
	pod    *Pod
	mounts map[string]pointMounts
	// places are those in the directory of the pod with the name of the link, devices how many raw block volumes are there.
	places  []kubelet.Volume
	devices int
	// broken is whether the volume of the link is not right: then the containers have it from there.
	broken bool
	at     string // the place of the link, as far as rows have found it
}

// row decides about a link, or leaves that to the next one.
type row func(c *linkCase) (v Verdict, ok bool)

// rows are asked in order; the first that decides wins. The last one always does.
var rows = []row{rowWanted, rowRenewed, rowContainer, rowKnown, rowThere, rowOfKubelet, rowUncovered, rowWritten, rowReadOnly}

// rowWanted: a link counts only for a pod that wants it by now. It is a driver's own affair if it stages volumes.
func rowWanted(c *linkCase) (Verdict, bool) {
	switch {
	case c.link.Kind == SourceLink, c.pod == nil, c.pod.Life == LifeLeaving, c.pod.Life == LifeOver:
		return Verdict{State: StateRight}, true
	case c.link.Kind != SubPathLink && !c.link.Started:
		return Verdict{State: StatePending}, true
	}
	return Verdict{}, false
}

// rowRenewed: each kubelet makes a subPath bind that is missing before it starts the container, and a subPath may expand to no path at all.
func rowRenewed(c *linkCase) (Verdict, bool) {
	return Verdict{State: StateRight}, c.link.Kind == SubPathLink
}

// rowContainer: a container has the file system that the kubelet has, where the runtime has mounted it, and no deleted directory, if the volume is
// no mount: other looks judge the mounts of volumes. If nothing is there for a path of the node, it is not known which mount of the container that
// is: the image may have a symbolic link on the way.
func rowContainer(c *linkCase) (Verdict, bool) {
	if c.link.Kind != ContainerLink {
		return Verdict{}, false
	}
	c.at = c.link.Mount.Point
	m, unknown := c.link.Mount, Directory{}
	switch {
	case c.broken, m.Has == unknown && m.Wants == unknown && !m.Covered:
		return Verdict{State: StatePending, Point: c.at}, true
	case m.Covered:
		return c.missing(reasonUnderInside)
	case m.Deleted:
		return c.missing(fmt.Sprintf(reasonDeletedIn, m.From))
	case m.Elsewhere, m.Wants == unknown, m.Has.Device == m.Wants.Device:
		return Verdict{State: StateRight}, true
	case m.Has == unknown:
		return c.missing(reasonNotInside)
	}
	return c.missing(fmt.Sprintf(reasonOtherInside, c.link.Mount.From))
}

// rowKnown: the place of a claim is known once the kubelet has a directory for it, which then has a link of its own. It has none for a
// PersistentVolume that is a path of the host.
func rowKnown(c *linkCase) (Verdict, bool) {
	if c.pod.Unlisted != "" {
		return Verdict{State: StateUnknown, Point: c.layout.PodDir(c.link.PodUID), Reason: c.pod.Unlisted}, true
	}
	return Verdict{State: StateRight}, c.link.Kind == VolumeLink && c.link.Volume == ""
}

// rowThere: the place has a mount, a directory or the links of devices, as the plugin makes them.
func rowThere(c *linkCase) (Verdict, bool) {
	if c.link.Kind == BlockLink {
		if c.devices >= c.link.Devices {
			return Verdict{State: StateRight}, true
		}
		c.at = path.Join(c.layout.PodDir(c.link.PodUID), "volumeDevices") // a claim does not say which of them is its own
		return c.missing(fmt.Sprintf("%d raw block volumes have a device there, though a pod that runs wants %d", c.devices, c.link.Devices))
	}
	c.at = path.Join(c.layout.PodDir(c.link.PodUID), "volumes")
	if c.link.Plugin != "" {
		c.at = c.layout.VolumePoint(kubelet.Volume{PodUID: c.link.PodUID, Plugin: c.link.Plugin, Name: c.link.Volume})
	}
	dir, plain := false, c.link.Plain || c.link.Either
	for _, v := range c.places {
		if c.link.Plugin != "" && c.link.Plugin != v.Plugin {
			continue
		}
		if point := c.layout.VolumePoint(v); !dir || c.mounts[point].mounted {
			// A driver from outside need not mount anything, and the kubelet compares that with nothing.
			// The mount that a symbolic link leads to is judged with the volumes.
			linked := c.pod.Symlinks[point] != ""
			c.at, dir, plain = point, true, plain || linked || isPlain(v.Plugin, mediumUnknown) || !strings.HasPrefix(v.Plugin, "kubernetes.io/")
		}
	}
	switch {
	case c.mounts[c.at].mounted, dir && plain:
		return Verdict{}, false
	case c.link.Plain:
		return c.missing(reasonNoDirectory)
	}
	return c.missing(reasonNotMounted)
}

// missing is the verdict on a link that was not found. A second look has to confirm it, while the pod runs.
func (c *linkCase) missing(reason string) (Verdict, bool) {
	if c.link.Runs == "" {
		return Verdict{State: StatePending, Point: c.at, Asks: true}, true
	}
	return Verdict{State: StateUnknown, Point: c.at, Reason: reason + " (" + c.link.Runs + ")"}, true
}

// rowOfKubelet: the kubelet makes either a directory or one tmpfs for a volume that it fills itself. Only a workload with Bidirectional may mount
// on the directory.
func rowOfKubelet(c *linkCase) (Verdict, bool) {
	at := c.mounts[c.at]
	tmpfs := kubelet.WritesAtomically(c.link.Plugin) && !isPlain(c.link.Plugin, corev1.StorageMediumDefault)
	switch {
	case !at.mounted:
		return Verdict{}, false
	case c.link.Plain && !c.link.Spreads:
		return c.missing(reasonOnDirectory)
	case tmpfs && at.several:
		return c.missing(reasonTwoLayers)
	case tmpfs && at.fsType != "tmpfs" && at.fsType != "":
		return c.missing(fmt.Sprintf(reasonOtherType, at.fsType))
	case at.readOnly && (tmpfs || c.link.Writes && !c.link.Plain && kubelet.FillsItself(c.link.Plugin)):
		return c.missing(reasonReadOnly)
	}
	return Verdict{}, false
}

// rowUncovered: a lookup of the place reaches the mount.
func rowUncovered(c *linkCase) (Verdict, bool) {
	at := c.mounts[c.at]
	return Verdict{State: StateUnknown, Point: c.at, Reason: reasonCovered}, at.mounted && !at.visible
}

// rowWritten: the kubelet writes files in the volume, or beside it, before it starts a container. They were looked up at the place.
func rowWritten(c *linkCase) (Verdict, bool) {
	if lacks := c.pod.Lacks[c.at]; lacks != "" {
		return c.missing(lacks)
	}
	return Verdict{}, false
}

// rowReadOnly: a driver may have been told to mount a volume read-only.
func rowReadOnly(c *linkCase) (Verdict, bool) {
	if c.mounts[c.at].readOnly && c.link.Writes && !kubelet.FillsItself(c.link.Plugin) {
		return Verdict{State: StateRight, Point: c.at, Note: noteReadOnly}, true
	}
	return Verdict{State: StateRight}, true
}

// noteReadOnly is of a volume of a driver.
const noteReadOnly = "it is mounted read-only, and by the spec of the pod a container writes to it: its PersistentVolume or its driver's attributes " +
	"say whether that is meant, and they were not read"

// Evaluate decides about each link, in the order of the links.
func (f *Facts) Evaluate(l *kubelet.Layout) []Verdict {
	pods, devices, places := map[string]*Pod{}, map[string]int{}, map[[2]string][]kubelet.Volume{} // by pod and volume
	for i := range f.Pods {
		pods[f.Pods[i].UID] = &f.Pods[i]
		for _, v := range f.Pods[i].Places {
			if key := [2]string{f.Pods[i].UID, v.Name}; v.Block {
				devices[f.Pods[i].UID]++
			} else {
				places[key] = append(places[key], v)
			}
		}
	}
	mounts := make(map[string]pointMounts, len(f.Mounts))
	for i := range f.Mounts {
		m := &f.Mounts[i]
		at := mounts[m.Point]
		at.several = at.several || at.mounted && at.device != m.Device
		if !at.mounted || !m.Hidden {
			at.device, at.fsType, at.readOnly = m.Device, m.FSType, m.ReadOnly
		}
		at.mounted, at.visible = true, at.visible || !m.Hidden
		mounts[m.Point] = at
	}
	all, broken := make([]Verdict, len(f.Links)), map[[2]string]bool{}
	for i := range f.Links {
		link := &f.Links[i]
		key := [2]string{link.PodUID, link.Volume}
		c := &linkCase{
			link: link, layout: l, pod: pods[link.PodUID], mounts: mounts, places: places[key], devices: devices[link.PodUID], broken: broken[key],
		}
		for _, decide := range rows {
			v, ok := decide(c)
			if all[i] = v; ok {
				break
			}
		}
		broken[key] = broken[key] || link.Kind == VolumeLink && link.Volume != "" && all[i].State != StateRight
	}
	return all
}

// Survey classifies the mounts and evaluates the links. It has each link that is not right among the unknown places, and counts the containers.
func (f *Facts) Survey(l *kubelet.Layout) Survey { return f.SurveyOf(l, f.Evaluate(l)) }

// SurveyOf is Survey with the verdicts on the links.
func (f *Facts) SurveyOf(l *kubelet.Layout, verdicts []Verdict) (sum Survey) {
	sum.Mounts = f.Classify(l)
	pods := map[string]fault.Pod{}
	for _, p := range f.Pods {
		pods[p.UID] = p.Pod
	}
	containers := map[string]bool{}
	for i := range f.Links {
		if m := f.Links[i].Mount; m != nil {
			containers[m.ID] = true
		}
	}
	sum.Coverage.Containers = len(containers)
	var noted []string
	for i, v := range verdicts {
		place := Place{Pod: pods[f.Links[i].PodUID], Volume: f.Links[i].Volume, Point: v.Point, Reason: cmp.Or(v.Reason, v.Note)}
		if v.Note != "" {
			noted = append(noted, place.String())
		}
		if v.State != StateUnknown {
			continue
		}
		if f.Links[i].Kind == ContainerLink {
			place.Container = f.Links[i].Container
		}
		if place.Point == l.PodDir(place.Pod.UID) {
			place.Volume = "" // it is that of all volumes
		}
		sum.Unknown.AddPlace(place)
	}
	switch {
	case len(noted) == 1:
		sum.Coverage.Notes = noted
	case len(noted) > 1:
		sum.Coverage.Notes = []string{fmt.Sprintf("%s (and %d more such volumes)", noted[0], len(noted)-1)}
	}
	return sum
}
