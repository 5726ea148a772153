// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package holder

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// maxSpaces is how many mount namespaces are entered to look for the layers of
// overlays. Most are found in the first, that of the host.
const maxSpaces = 64

var errBeyond = errors.New("too many mount namespaces")

// overlay is an overlay whose layers are looked for. The kernel tells nothing
// about them but the paths that it was mounted with.
type overlay struct {
	mountns.FileSystem
	placed  bool   // every layer was found
	unclear bool   // a layer could not be looked for
	missing string // a layer that is not there any more
}

// overlays looks for overlays with a layer on the device. Where the device is
// busy and nothing explains it, one of which a layer is no longer to be found
// may be the reason: its file system was unmounted, and lives on for it.
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
	for i, ns := range byOverlays(found) {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.placeIn(ns, found, i >= maxSpaces)
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

// byOverlays gives the namespaces that overlays are mounted in, those with most
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

// placeIn looks in a namespace for the layers of the overlays that are mounted
// there, and have not been placed; beyond the limit, it only notes that it did
// not.
func (s *search) placeIn(ns mountns.Namespace, found []*overlay, beyond bool) {
	var there []*overlay
	for _, o := range found {
		if !o.placed && slices.Contains(o.Namespaces, ns) {
			there = append(there, o)
		}
	}
	if len(there) == 0 {
		return
	}
	err := errBeyond
	if !beyond {
		look := mountns.LookupLocal
		if ours(ns) {
			look = func(name string) (*sys.FD, error) { return mountns.Lookup(0, name) }
		}
		err = ns.Do(func() error {
			table, err := mountns.Table(0)
			if err == nil {
				s.placeBy(table, there, look)
			}
			return err
		})
	}
	for _, o := range there {
		o.unclear = o.unclear || err != nil
	}
}

// ours tells whether a namespace is that of this process or of process 1. In all
// others a path may lead over whatever those who made them like.
func ours(ns mountns.Namespace) bool {
	self, err := mountns.Self()
	first, errFirst := mountns.Of(1)
	return err == nil && ns.Same(self) || errFirst == nil && ns.Same(first)
}

// lookup opens a path as the calling thread sees it, and does not wait.
type lookup func(name string) (*sys.FD, error)

// placeBy looks for the layers as the calling thread sees them.
func (s *search) placeBy(table *mountinfo.Table, there []*overlay, look lookup) {
	options := map[blockdev.Number]string{}
	for _, m := range table.Mounts() {
		if m.FSType == "overlay" {
			options[blockdev.Number{Major: m.Major, Minor: m.Minor}] = m.SuperOptions
		}
	}
	for _, o := range there {
		text, ok := options[blockdev.Number{Major: o.Major, Minor: o.Minor}]
		if !ok {
			o.unclear = true // hidden from us in a chroot
			continue
		}
		s.placeLayers(o, layers(text), look)
	}
}

// placeLayers looks for the layers of one overlay.
func (s *search) placeLayers(o *overlay, names []string, look lookup) {
	placed := len(names) > 0
	for _, name := range names {
		number, err := layerDevice(name, look)
		switch {
		case gone(err) || errors.Is(err, sys.ENOTDIR):
			o.missing, placed = name, false
		case err != nil:
			o.unclear, placed = true, false
		case s.super[number]:
			s.place(number)
			s.add(Holder{Kind: OverlayLayer, Mount: o.Mount, Path: o.Point, Detail: "its layer " + name + " is on the device"})
		}
	}
	o.placed = placed
}

// layerDevice is the file system that a layer's path lies on now.
func layerDevice(name string, look lookup) (blockdev.Number, error) {
	if !path.IsAbs(name) {
		return blockdev.Number{}, sys.EINVAL // from where whoever mounted it was
	}
	fd, err := look(path.Clean(name))
	if err != nil {
		return blockdev.Number{}, err
	}
	defer fd.Close()
	st, err := fd.Stat(sys.StatType)
	return blockdev.Number{Major: st.Major, Minor: st.Minor}, err
}

// layers reads the paths of an overlay's layers out of its options, as mountinfo
// has them. The kernel writes commas that are part of a path as octal numbers.
func layers(options string) []string {
	var names []string
	for option := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(option, "=")
		value = mountinfo.Unescape(value)
		switch key {
		case "lowerdir":
			names = append(names, splitLower(value)...)
		case "upperdir":
			names = append(names, splitLower(strings.ReplaceAll(value, ":", `\:`))...)
		case "lowerdir+", "datadir+":
			names = append(names, value)
		}
	}
	return names
}

// splitLower splits paths at colons. A backslash takes the meaning from what
// follows it.
func splitLower(value string) []string {
	var (
		names []string
		name  strings.Builder
	)
	end := func() {
		if name.Len() > 0 { // two colons begin layers of data alone
			names = append(names, name.String())
		}
		name.Reset()
	}
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c == '\\' && i+1 < len(value):
			i++
			name.WriteByte(value[i])
		case c == ':':
			end()
		default:
			name.WriteByte(c)
		}
	}
	end()
	return names
}
