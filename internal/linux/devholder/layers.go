// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// overlayMount is an overlay to search: its number, and the namespaces of the order in which it is mounted.
type overlayMount struct {
	Number           blockdev.Number
	NamespaceIndexes []int
}

// overlayLayers holds the layers of an overlay of the order, as one namespace shows them. Names need not be UTF-8.
type overlayLayers struct {
	Index   int
	Placed  bool // every layer was found
	Unclear bool // the search for a layer failed
	Missing []byte
	On      []foundLayer // those on the device
}

type foundLayer struct {
	Name   []byte
	Number blockdev.Number
}

// findOverlays looks for the layers of overlays, namespace by namespace, until every
// layer of each was found.
func (j *job) findOverlays(ctx context.Context) error {
	placed := make([]bool, len(j.Overlays))
	for i, namespace := range j.Namespaces {
		var there []int
		for n, o := range j.Overlays {
			if !placed[n] && slices.Contains(o.NamespaceIndexes, i) {
				there = append(there, n)
			}
		}
		if len(there) == 0 {
			continue
		}
		all, err := callWithin(ctx, j, namespace.String(), namespaceTimeout, func() ([]overlayLayers, error) { return j.layersIn(namespace, there) })
		if err != nil {
			all = nil
			for _, n := range there {
				all = append(all, overlayLayers{Index: n, Unclear: true})
			}
		}
		for _, l := range all {
			placed[l.Index] = l.Placed
			if err := j.write(jobOutput{Overlay: &l}); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// layersIn looks in a namespace for the layers of those overlays.
func (j *job) layersIn(ns mountns.Namespace, there []int) (all []overlayLayers, err error) {
	look := mountns.LookupForeign
	if ns.IsOwn() {
		look = func(name string) (*sys.FD, error) { return mountns.Lookup(0, name) }
	}
	err = ns.Do(func() error {
		table, err := mountns.Table(0)
		if err != nil {
			return err
		}
		options := map[blockdev.Number]string{}
		for _, m := range table.Mounts() {
			if m.FSType == "overlay" {
				options[blockdev.Number{Major: m.Major, Minor: m.Minor}] = m.SuperOptions
			}
		}
		for _, n := range there {
			text, ok := options[j.Overlays[n].Number] // else it is hidden from us in a chroot
			names := parseLayers(text)
			l := overlayLayers{Index: n, Placed: len(names) > 0, Unclear: !ok}
			for _, name := range names {
				number, err := layerDevice(name, look)
				switch {
				case procfs.Ended(err) || errors.Is(err, sys.ENOTDIR):
					l.Missing, l.Placed = []byte(name), false
				case err != nil:
					l.Unclear, l.Placed = true, false
				case slices.Contains(j.Marks.Superblocks, number):
					l.On = append(l.On, foundLayer{[]byte(name), number})
				}
			}
			all = append(all, l)
		}
		return nil
	})
	return all, err
}

// layerDevice is the file system that a layer's path lies on now. look opens a path as the calling thread sees it.
func layerDevice(name string, look func(string) (*sys.FD, error)) (blockdev.Number, error) {
	if !path.IsAbs(name) {
		return blockdev.Number{}, sys.EINVAL // from where its mounter was
	}
	fd, err := look(path.Clean(name))
	if err != nil {
		return blockdev.Number{}, err
	}
	defer fd.Close()
	st, err := fd.Stat(sys.StatType)
	return blockdev.Number{Major: st.Major, Minor: st.Minor}, err
}

// parseLayers reads the paths of an overlay's layers out of its options, as mountinfo
// has them. The kernel writes commas that are part of a path as octal numbers.
func parseLayers(options string) []string {
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

// splitLower splits paths at colons. A backslash takes the meaning from the next byte.
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
