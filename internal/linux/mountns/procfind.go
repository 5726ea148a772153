// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"bytes"
	"errors"

	"kubediag.org/kubediag/internal/linux/mountinfo"
)

func (p procScan) namespaces() ([]Namespace, Survey, error) {
	var found []Namespace
	survey, err := p.readAllTables(func(ns Namespace, _ []byte) error {
		if last := len(found) - 1; last < 0 || found[last] != ns { // of a long table there is more
			found = append(found, ns)
		}
		return nil
	})
	return found, survey, err
}

func (p procScan) scan(wanted func(*MountBrief) bool, found func(*Mount)) (Survey, error) {
	var brief MountBrief
	kinds := map[string]bool{} // by the kernel's name of the type
	return p.readAllTables(func(namespace Namespace, text []byte) error {
		brief.Namespace = namespace
		var bad error
		err := mountinfo.EachLine(text, func(l mountinfo.Line) bool {
			_, parent, major, minor, ok := l.Numbers()
			kind, typed := l.FSType()
			if !ok || !typed {
				_, bad = l.Mount()
				return bad == nil
			}
			brief.Major, brief.Minor, brief.Parent, brief.MayHang = major, minor, parent, mayHang(kinds, kind)
			if !wanted(&brief) {
				return true
			}
			var m mountinfo.Mount
			if m, bad = l.Mount(); bad == nil {
				found(&Mount{Mount: m, Namespace: namespace})
			}
			return bad == nil
		})
		return errors.Join(err, bad)
	})
}

// mayHang is MayHang of the type, without its subtype, which any user may choose.
func mayHang(kinds map[string]bool, kind []byte) bool {
	name, _, _ := bytes.Cut(kind, []byte{'.'})
	hangs, known := kinds[string(name)]
	if !known {
		hangs = MayHang(string(name))
		kinds[string(name)] = hangs
	}
	return hangs
}
