// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"cmp"
	"fmt"
	"strings"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// Link is one link of the chain from the source of a volume to the container that uses it.
type Link struct {
	Role  role
	State State
	Texts []string
}

// role is the kind of a link.
type role string

const (
	roleSource    role = "source"
	roleNodeMount role = "mount of the node"
	roleVolume    role = "volume"
	roleInside    role = "mount inside the volume"
	roleBind      role = "subPath bind"
	roleCopy      role = "copy in the container"
	roleContainer role = "container"
	roleStaging   role = "staging path"
	roleDevice    role = "device"
	roleElsewhere role = "mount in another namespace"
	roleHolder    role = "holder"
	roleDirectory role = "directory of the pod"
	rolePlace     role = "mounts at one place"
	roleNode      role = "mounts of the node"
)

// chainShape are the links of a chain, and which of them is at fault: the first that is broken. Those before it are right. Nothing is
// said of the daemon or the server behind a volume that is broken: it may be the cause.
type chainShape struct {
	links  []role
	broken int
}

var chains = map[fault.Place]chainShape{
	fault.PlaceVolume:       {[]role{roleSource, roleVolume, roleContainer}, 1},
	fault.PlaceHostPath:     {[]role{roleNodeMount, roleVolume, roleContainer}, 0},
	fault.PlaceInsideVolume: {[]role{roleVolume, roleInside, roleContainer}, 1},
	fault.PlaceSubPath:      {[]role{roleSource, roleVolume, roleBind, roleContainer}, 2},
	fault.PlaceContainer:    {[]role{roleSource, roleVolume, roleCopy, roleContainer}, 2},
	fault.PlaceSource:       {[]role{roleSource, roleVolume, roleContainer}, 0},
	fault.PlaceSocket:       {[]role{roleSource, roleVolume, roleContainer}, 0},
	fault.PlaceDevice:       {[]role{roleDevice, roleElsewhere, roleHolder}, 1},
	fault.PlacePodDirectory: {[]role{roleDirectory}, 0},
	fault.PlaceMounts:       {[]role{rolePlace}, 0},
	fault.PlaceStaging:      {[]role{roleSource, roleStaging}, 1},
	fault.PlaceMountLimit:   {[]role{roleNode}, 0},
}

// chainPlace is the place of a finding, or the one at which faults of its code are, if it says none.
func chainPlace(f fault.Finding) fault.Place {
	entry := fault.Known().Entry(f.Code)
	switch {
	case f.Details.Place != fault.PlaceUnknown:
		return f.Details.Place
	case entry.Scope == fault.ScopeDevice:
		return fault.PlaceDevice
	case entry.Scope == fault.ScopeDirectory:
		return fault.PlacePodDirectory
	case entry.Scope == fault.ScopePlace:
		return fault.PlaceMounts
	case entry.Scope == fault.ScopeContainer && entry.Breaks == fault.BreaksMount:
		return fault.PlaceSubPath
	case entry.Scope == fault.ScopeContainer:
		return fault.PlaceSource
	}
	return fault.PlaceVolume
}

// Chain is the chain of a finding. The link at fault has the mount.
func Chain(f fault.Finding) (list []Link) {
	place := chainPlace(f)
	shape := chains[place]
	var mount []string // at fault
	m := f.Mount
	at := cmp.Or(m.Point, f.Details.Path)
	if at != "" {
		mount = append(mount, at)
	}
	if m.Device != "" || m.FSType != "" {
		mount = append(mount, strings.TrimSpace(m.FSType+" "+m.Device))
	}
	if m.Root != "" && m.Root != "/" {
		mount = append(mount, "root "+m.Root)
	}
	if m.MountInfoID != 0 {
		mount = append(mount, fmt.Sprintf("mount %d", m.MountInfoID))
	}
	if m.Namespace != 0 {
		mount = append(mount, fmt.Sprintf("mount namespace %d", m.Namespace))
	}
	for i, r := range shape.links {
		link := Link{Role: r, Texts: linkTexts(r, f)}
		switch {
		case i < shape.broken && (r != roleSource || place == fault.PlaceSubPath):
			link.State = Good
		case i == shape.broken:
			link.State = Bad
			link.Texts = append(link.Texts, mount...)
		case i > shape.broken && r != roleHolder:
			link.State = Warn
		}
		list = append(list, link)
	}
	return list
}

// linkTexts are the names of a link.
func linkTexts(r role, f fault.Finding) (texts []string) {
	d := f.Details
	add := func(before, text string) {
		if text != "" {
			texts = append(texts, before+text)
		}
	}
	switch r {
	case roleSource, roleNodeMount:
		add("driver ", d.Driver)
		add("PersistentVolume ", d.PersistentVolume)
		if d.Daemon != nil {
			add("daemon ", d.Daemon.String())
		}
	case roleVolume, roleStaging:
		add("", cmp.Or(d.SpecVolume, f.Volume))
	case roleContainer, roleCopy:
		add("", f.Container)
		if f.Pod.Name != "" {
			add("pod ", f.Pod.Namespace+"/"+f.Pod.Name)
		}
	case roleDevice:
		add("", cmp.Or(d.Device, f.Mount.Device))
	case roleHolder:
		add("", f.Holder)
	case roleInside, roleBind, roleElsewhere, roleDirectory, rolePlace, roleNode: // the mount says it
	}
	return texts
}

// Sizes of the drawing, in its own units.
const (
	chainWidth  = 340
	chainColumn = 38 // characters in a line
	lineHeight  = 16
	boxPadding  = 8
	boxDistance = 20
	linkBytes   = 260 // of one text of a link
)

// drawing is a chain or a graph that a template draws.
type drawing struct {
	Width, Height int
	Boxes         []box
	Edges         []edge // of a graph
	// Words say the same to those who do not see it.
	Words string
}

// box is a link or a step with its coordinates. Its mark and its lines are below Y.
type box struct {
	State               State
	Heading             string // of a link
	X, Y, Right, Height int
	MarkX, Mark         int
	Lines               []textLine
	Arrow, ArrowFrom    int // to the next link
}

// textLine is a line of text.
type textLine struct {
	X, Y int
	Text string
}

// stateWords are those of a link.
var stateWords = map[State]string{Good: "not at fault", Bad: "broken here", Warn: "affected"}

// draw lays out a chain from top to bottom: so it fits a telephone, and paths have room.
func (l Language) draw(chain []Link) drawing {
	d := drawing{Width: chainWidth, Height: 1}
	for i, link := range chain {
		heading := l.Word(string(link.Role))
		if words := stateWords[link.State]; words != "" {
			heading += ": " + l.Word(words)
		}
		b := box{State: link.State, Heading: heading, X: 1, Y: d.Height, Right: chainWidth - 2, MarkX: 18}
		b.Mark = b.Y + boxPadding + lineHeight/2
		y := b.Y + boxPadding + lineHeight - 4
		for i, text := range link.Texts {
			text = printable.Quoted(text) // in one line
			link.Texts[i] = text
			for _, part := range breakText(printable.ClipMiddle(text, linkBytes), chainColumn) {
				y += lineHeight
				b.Lines = append(b.Lines, textLine{36, y, part})
			}
		}
		b.Height = y + boxPadding - b.Y + 4
		d.Height += b.Height
		if i+1 < len(chain) {
			b.Arrow, b.ArrowFrom = boxDistance-4, d.Height
			d.Height += boxDistance
		}
		d.Boxes = append(d.Boxes, b)
		d.Words += strings.Join(append([]string{heading}, link.Texts...), " ") + "; "
	}
	d.Height++
	d.Words = strings.TrimSuffix(d.Words, "; ")
	return d
}

// breakText breaks a text into lines, also within words: a path has none.
func breakText(text string, columns int) (lines []string) {
	used, begin := 0, 0
	for i, r := range text {
		n := terminal.Columns(string(r))
		if used+n > columns {
			lines = append(lines, text[begin:i])
			used, begin = 0, i
		}
		used += n
	}
	return append(lines, text[begin:])
}
