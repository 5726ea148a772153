// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import "kubediag.org/kubediag/internal/linux/mountinfo"

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
	return p.readAllTables(func(namespace Namespace, text []byte) error {
		brief.Namespace = namespace
		for l := range mountinfo.Lines(text) {
			_, parent, major, minor, ok := l.Numbers()
			kind, typed := l.FSType()
			brief.Major, brief.Minor, brief.Parent = major, minor, parent
			brief.MayHang, brief.Overlay = MayHang(string(kind)), string(kind) == overlayType
			if ok && typed && !wanted(&brief) {
				continue
			}
			m, err := l.Mount() // also explains the fault in a line
			if err != nil {
				return err
			}
			found(&Mount{Mount: m, Namespace: namespace})
		}
		return nil
	})
}
