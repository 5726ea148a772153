// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"context"
	"slices"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// maxSpaces is how many mount namespaces are entered to look for the layers of
// overlays. Most are found in the first, that of the host.
const maxSpaces = 64

// overlay is an overlay whose layers are looked for. The kernel shows nothing about
// them but the paths that it was mounted with.
type overlay struct {
	mountns.FileSystem
	placed  bool   // every layer was found
	unclear bool   // a layer could not be looked for
	missing string // a layer that is not there any more
}

// overlays looks for overlays with a layer on the device. If the device is busy
// and nothing explains it, an overlay may be the reason whose layer cannot be
// found: the layer's file system was unmounted, and lives on for it.
func (s *search) overlays(ctx context.Context) error {
	all, _, err := s.scanner.FileSystems()
	if err != nil {
		return err
	}
	var found []*overlay
	for _, fs := range all {
		if fs.FSType == "overlay" {
			found = append(found, &overlay{FileSystem: fs})
		}
	}
	s.report.Looked.Overlays = len(found)
	if err := s.placeAll(ctx, found); err != nil {
		return err
	}
	for _, o := range found {
		switch {
		case o.placed:
		case o.unclear || o.missing == "":
			s.report.Looked.Unplaced++
		case s.busyUnexplained():
			s.add(Holder{
				Kind: OverlayLayer, Mount: o.Mount, Path: o.Point, Inferred: true,
				Detail: "its layer " + o.missing + " is not there any more, and may be on the device",
			})
		}
	}
	return nil
}

// placeAll has the layers of overlays looked for, in the namespaces that they are
// mounted in. Beyond the limit it only notes that it did not.
func (s *search) placeAll(ctx context.Context, found []*overlay) error {
	spaces := byOverlays(found)
	if len(spaces) == 0 {
		return nil
	}
	entered := spaces[:min(len(spaces), maxSpaces)]
	o := order{Of: ofOverlays, Marks: s.marks(), Spaces: entered}
	for _, overlay := range found {
		m := mounted{Number: blockdev.Number{Major: overlay.Major, Minor: overlay.Minor}}
		for i, ns := range spaces {
			if !slices.Contains(overlay.Namespaces, ns) {
				continue
			}
			if overlay.unclear = i >= maxSpaces; i < maxSpaces {
				m.Spaces = append(m.Spaces, i)
			}
		}
		o.Overlays = append(o.Overlays, m)
	}
	return s.runJob(ctx, o, found)
}

// takeLayers notes what was found of the layers of an overlay in one namespace.
func (s *search) takeLayers(o *overlay, l *layered) {
	o.placed, o.unclear = l.Placed, o.unclear || l.Unclear
	if l.Missing != nil {
		o.missing = string(l.Missing)
	}
	for _, layer := range l.On {
		s.place(layer.Number)
		s.add(Holder{Kind: OverlayLayer, Mount: o.Mount, Path: o.Point, Detail: "its layer " + string(layer.Name) + " is on the device"})
	}
}

// byOverlays returns the namespaces that overlays are mounted in, those with most
// of them first.
func byOverlays(found []*overlay) []mountns.Namespace {
	count := map[mountns.Namespace]int{}
	var spaces []mountns.Namespace
	for _, o := range found {
		for _, ns := range o.Namespaces {
			if count[ns]++; count[ns] == 1 {
				spaces = append(spaces, ns)
			}
		}
	}
	slices.SortStableFunc(spaces, func(a, b mountns.Namespace) int { return count[b] - count[a] })
	return spaces
}
