// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/ui"
)

// maxLinks bounds the rows of the links of a page. Those that are wrong come first.
const maxLinks = 200

// nodeLink is a mount that a pod has from the kubelet: a volume, a subPath bind, or the staging path of a volume.
type nodeLink struct {
	mount             mountstate.Classified
	volume, container string
}

// linksOf are the mounts that pods have from the kubelet, in the order of the mount table. It leaves out those of no pod, and those that lie
// in a volume.
func linksOf(l *kubelet.Layout, sum *mountstate.Survey) (links []nodeLink) {
	for _, m := range sum.Judged() {
		switch m.Class {
		case mountstate.Inside, mountstate.Drivers, mountstate.Kubelets:
			continue
		case mountstate.Wanted, mountstate.Hidden, mountstate.LeftOver, mountstate.Unproven:
		}
		link := nodeLink{mount: m, volume: path.Base(path.Dir(m.Point))} // that of a staging path
		if v, ok := l.ParseVolume(m.Point); ok {
			link.volume = v.Name
		} else if s, ok := l.ParseSubPath(m.Point); ok {
			link.volume, link.container = s.Volume, s.Container
		}
		links = append(links, link)
	}
	return links
}

// links are the mounts of pods; none if not all faults were looked for.
func (s scanPages) links() []nodeLink {
	if s.view.report.links == nil {
		return nil
	}
	return s.view.report.links()
}

// linkTexts describe a link by the class of its mount.
var linkTexts = map[mountstate.Class]string{
	mountstate.Wanted: "no fault found", mountstate.Hidden: "another mount lies on it", mountstate.LeftOver: "left: no pod of this node has it",
	mountstate.Unproven: "not judged",
}

// linksSection has each link of the node, and whether it is right. It has no rows if the scan did not look for all faults.
func (s scanPages) linksSection() ui.Section {
	atFault, names := map[string]*scanFault{}, map[string]string{}
	for i := range s.view.report.Faults {
		f := &s.view.report.Faults[i]
		if at := f.Mount.Point; at != "" && f.Mount.Namespace == 0 && atFault[at] == nil {
			atFault[at] = f
		}
		if f.Pod.Name != "" {
			names[f.Pod.UID] = f.Pod.shortName()
		}
	}
	section := ui.Section{Heading: s.language.Word("Links"), Table: ui.Table{Columns: []string{"POD", "VOLUME", "MOUNT", "STATE"}}}
	wrong := 0
	links := s.links()
	for _, link := range links {
		m := link.mount
		pod := cmp.Or(names[m.Pod.UID], scanPod{UID: m.Pod.UID, Namespace: m.Pod.Namespace, Name: m.Pod.Name}.shortName())
		if m.Pod.UID == "" {
			pod = s.language.Word("node")
		}
		volume := link.volume
		if link.container != "" {
			volume += ", subPath of container " + link.container
		}
		row := ui.Row{State: ui.Good, Cells: []string{pod, volume, m.FSType + " " + m.Device, linkTexts[m.Class]}, Below: m.Point}
		if m.Class != mountstate.Wanted {
			row.State, row.Cells[3] = ui.Warn, cmp.Or(m.Reason, row.Cells[3])
		}
		if f := atFault[m.Point]; f != nil && !m.Hidden {
			wrong++
			row.State, row.Link, row.Cells[3] = ui.StateOf(verb.Colours[f.Impact]), "#fault-"+strconv.Itoa(f.Place), string(f.Code)
			if f.Place > maxPlaces {
				row.Link = ""
			}
		}
		section.Table.Rows = append(section.Table.Rows, row)
	}
	slices.SortStableFunc(section.Table.Rows, func(a, b ui.Row) int {
		return cmp.Or(a.State.Rank()-b.State.Rank(), cmp.Compare(a.Cells[0], b.Cells[0]))
	})
	section.Text = []string{fmt.Sprintf("%s of volumes of pods, %d of them at fault", verb.Count(len(links), "mount"), wrong)}
	rows, more := ui.First(section.Table.Rows, maxLinks, ", none of them worse than these")
	section.Table.Rows, section.Text = rows, append(section.Text, more...)
	return section
}
