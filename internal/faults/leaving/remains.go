// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package leaving

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Remains are the facts about a pod whose time is over and of which something is left. They can be written down as JSON.
type Remains struct {
	Pod fault.Pod `json:"pod"`
	// Path is its directory, Text the sentence about it.
	Path string `json:"path"`
	Text string `json:"text"`
	// Over is whether it is proven that it wants nothing any more. RunsUnknown says why that is not known.
	Over        bool   `json:"over,omitempty"`
	RunsUnknown string `json:"runsUnknown,omitempty"`
	// Waiting are processes of it that were killed and wait in the kernel.
	Waiting []Process `json:"waiting,omitempty"`
	Places  []Place   `json:"places,omitempty"`
	// UsersUnknown says why it is not known of each mount whether something uses it.
	UsersUnknown string `json:"usersUnknown,omitempty"`
	// NotListed says which directories could not be listed, and why.
	NotListed string `json:"notListed,omitempty"`
}

// Place is a mount, or the directory of a volume, that is left of a pod.
type Place struct {
	Kind PlaceKind `json:"kind"`
	// Volume is the kubelet's name; empty if it is not in the place of one.
	Volume string `json:"volume,omitempty"`
	Plugin string `json:"plugin,omitempty"`
	// Mount has the point alone if nothing is mounted there.
	Mount fault.Mount `json:"mount"`
	// HiddenBy is the mount that a lookup of the point reaches instead; nil: this one.
	HiddenBy *fault.Mount `json:"hiddenBy,omitempty"`
	// Driver is the CSI driver by the kubelet's record. NoRecord says why the record cannot be used.
	Driver   string `json:"driver,omitempty"`
	NoRecord string `json:"noRecord,omitempty"`
	// Users are those because of which the kernel refuses to unmount the mount.
	Users []Process `json:"users,omitempty"`
	// Files is how many entries lie in the place of a mount, at most as many as are counted. 0: none, or they are the kubelet's own.
	Files int `json:"files,omitempty"`

	found mountinfo.Mount // the mount, where it was looked for
}

// PlaceKind is the kind of a place.
type PlaceKind string

// Kinds of places.
const (
	OfVolume  PlaceKind = "Volume"    // of a volume, mounted
	Directory PlaceKind = "Directory" // of a volume, with nothing mounted
	OfSubPath PlaceKind = "SubPath"
	Inside    PlaceKind = "Inside" // inside a volume
	Elsewhere PlaceKind = "Elsewhere"
)

// Bounds of sentences and counts.
const (
	maxPlacesNamed = 10 // in a sentence
	maxFiles       = 5  // that are counted in a directory
)

// findRemains lists for each pod the mounts below its directory, and the directories of its volumes with no mount.
func (i *Inspector) findRemains(ctx context.Context, pods []*corev1.Pod) ([]*Remains, error) {
	node, err := i.Kubelet.Node(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]*Remains, len(pods))
	err = node.Do(ctx, func() error {
		table, err := node.TableInside()
		if err != nil {
			return err
		}
		namespace, err := mountns.Self()
		if err != nil {
			return err
		}
		l := &lister{node, table, namespace}
		for n, pod := range pods {
			if all[n], err = l.remainsOf(string(pod.UID)); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
	return all, err
}

// lister lists the remains of pods. It works inside the kubelet's namespace.
type lister struct {
	node      *kubelet.Node
	table     *mountinfo.Table
	namespace mountns.Namespace
}

func (l *lister) remainsOf(uid string) (*Remains, error) {
	if l.node.VolumeDir(uid, kubelet.CSIPlugin, "any") == "" {
		return nil, fmt.Errorf("read pod: its UID %q cannot be the name of a directory", uid)
	}
	r := &Remains{Path: l.node.PodDir(uid)}
	mounted := map[string]bool{}
	for _, m := range l.table.Under(r.Path) {
		mounted[m.Point] = true
		place := Place{Kind: Elsewhere, found: m, Mount: faults.MountOf(mountns.Mount{Mount: m, Namespace: l.namespace})}
		if v, ok := l.node.ParseVolume(m.Point); ok {
			place.Kind, place.Volume, place.Plugin = OfVolume, v.Name, v.Plugin
		} else if s, ok := l.node.ParseSubPath(m.Point); ok {
			place.Kind, place.Volume = OfSubPath, s.Volume
		} else if v, ok := l.node.ParseInsideVolume(m.Point); ok {
			place.Kind, place.Volume, place.Plugin = Inside, v.Name, v.Plugin
		}
		if visible, ok := l.table.On(m.Point); ok && visible.ID != m.ID {
			place.HiddenBy = new(faults.MountOf(mountns.Mount{Mount: visible, Namespace: l.namespace}))
		} else {
			l.addContents(&place)
		}
		r.Places = append(r.Places, place)
	}
	volumes, err := l.node.PodVolumes(uid)
	switch {
	case errors.Is(err, mountns.ErrMayBlock): // by one of those mounts
		r.NotListed = fmt.Sprintf("directories of volumes, which were not listed: %v", err)
		return r, nil
	case err != nil:
		return nil, err
	}
	for _, v := range volumes {
		if point := l.node.VolumePoint(v); point != "" && !mounted[point] {
			place := Place{Kind: Directory, Volume: v.Name, Plugin: v.Plugin, Mount: fault.Mount{Point: point, Namespace: l.namespace.Inode}}
			l.addContents(&place)
			r.Places = append(r.Places, place)
		}
	}
	return r, nil
}

// addContents adds the kubelet's record of a CSI volume. In a directory where a driver's file system was mounted, it counts the entries: the kubelet
// removes its own files itself.
func (l *lister) addContents(place *Place) {
	if place.Kind == Directory && !kubelet.FillsItself(place.Plugin) {
		dir, err := mountns.View{}.LookupNotHanging(place.Mount.Point) // an error: it is gone, or no directory that may be listed
		if err == nil {
			names, _, _ := sys.ListDir(dir, maxFiles) // none: it is no directory
			place.Files = min(len(names), maxFiles)
		}
		dir.Close()
	}
	if place.Plugin != kubelet.CSIPlugin || place.Kind != OfVolume && place.Kind != Directory {
		return
	}
	name := kubelet.VolumeRecordPath(place.Mount.Point)
	record, err := kubelet.ReadVolumeRecordAt(l.table, place.Mount.Point)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, sys.ENOENT):
		place.NoRecord = fmt.Sprintf("its record %q is missing", name)
	case err != nil:
		place.NoRecord = err.Error()
	default:
		place.Driver = record.Driver
	}
}

// describe names the places.
func (r *Remains) describe() string {
	var texts []string
	for _, p := range r.Places {
		texts = append(texts, p.String())
	}
	texts = fault.Most(texts, maxPlacesNamed, "and %d more")
	if r.NotListed != "" {
		texts = append(texts, r.NotListed)
	}
	return strings.Join(texts, "; ")
}

// String is the place for people.
func (p Place) String() string {
	text := fmt.Sprintf("mount %d of type %q at %q", p.Mount.MountInfoID, p.Mount.FSType, p.Mount.Point)
	switch {
	case p.Kind == Directory:
		text = fmt.Sprintf("the directory of volume %q at %q, with nothing mounted", p.Volume, p.Mount.Point)
	case p.Mount.Root != "/":
		text += fmt.Sprintf(", which shows %q", p.Mount.Root)
	}
	switch {
	case p.HiddenBy != nil:
		text += fmt.Sprintf(", hidden by mount %d of type %q at %q", p.HiddenBy.MountInfoID, p.HiddenBy.FSType, p.HiddenBy.Point)
	case p.NoRecord != "":
		text += fmt.Sprintf(" (%s)", p.NoRecord)
	case p.Driver != "":
		text += fmt.Sprintf(" (of CSI driver %s)", p.Driver)
	}
	return text
}
