// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"context"
	"slices"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// maxOverlayNamespaces is how many mount namespaces are entered to look for the layers of
// overlays. Most are found in the first, that of the host.
const maxOverlayNamespaces = 64

// searchedOverlay is an overlay whose layers are searched. The kernel shows nothing about them but the paths that it
// was mounted with.
type searchedOverlay struct {
	fs             mountns.FileSystem
	allLayersFound bool   // every layer was found
	layerUnknown   bool   // the search for a layer failed
	missing        string // a layer that is not there any more
}

// findOverlays looks for overlays with a layer on the device. If the device is busy
// and nothing explains it, an overlay may be the reason whose layer cannot be
// found: the layer's file system was unmounted, and lives on for it.
func (s *holderSearch) findOverlays(ctx context.Context) error {
	all, _, err := s.pass.Overlays()
	if err != nil {
		return err
	}
	var found []*searchedOverlay
	for _, fs := range all {
		found = append(found, &searchedOverlay{fs: fs})
	}
	s.report.Coverage.Overlays = len(found)
	if err := s.searchLayers(ctx, found); err != nil {
		return err
	}
	for _, overlay := range found {
		switch {
		case overlay.allLayersFound:
		case overlay.layerUnknown || overlay.missing == "":
			s.report.Coverage.Unplaced++
		default:
			s.inferred = append(s.inferred, Holder{
				Kind: OverlayLayer, Mount: overlay.fs.Mount, Path: overlay.fs.Mount.Point, Inferred: true,
				Detail: "its layer " + overlay.missing + " is not there any more, and may be on the device",
			})
		}
	}
	return nil
}

// searchLayers starts the search for the layers of overlays, in the namespaces of their mounts. Beyond the limit it
// only notes the gap.
func (s *holderSearch) searchLayers(ctx context.Context, found []*searchedOverlay) error {
	count := map[mountns.Namespace]int{}
	var spaces []mountns.Namespace // that overlays are mounted in, those with most of them first
	for _, overlay := range found {
		for _, ns := range overlay.fs.Namespaces {
			if count[ns]++; count[ns] == 1 {
				spaces = append(spaces, ns)
			}
		}
	}
	slices.SortStableFunc(spaces, func(a, b mountns.Namespace) int { return count[b] - count[a] })
	if len(spaces) == 0 {
		return nil
	}
	entered := spaces[:min(len(spaces), maxOverlayNamespaces)]
	order := jobOrder{Job: jobOverlays, Marks: s.marks(), Namespaces: entered}
	for _, overlay := range found {
		m := overlayMount{Number: blockdev.Number{Major: overlay.fs.Mount.Major, Minor: overlay.fs.Mount.Minor}}
		for i, ns := range spaces {
			if !slices.Contains(overlay.fs.Namespaces, ns) {
				continue
			}
			if overlay.layerUnknown = i >= maxOverlayNamespaces; i < maxOverlayNamespaces {
				m.NamespaceIndexes = append(m.NamespaceIndexes, i)
			}
		}
		order.Overlays = append(order.Overlays, m)
	}
	return s.runJob(ctx, order, found)
}
