// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"slices"

	"kubediag.org/kubediag/internal/fault"
)

// A chain leads from the source of a volume to the containers that have it, and several looks see parts of it. Each state is said once, at the
// first part that is broken: the others are repaired with it.

// Attribute leaves out of the survey all that one of its findings explains.
func (s *Survey) Attribute() {
	s.Unknown = s.Unknown.Without(s.Findings)
	s.Findings = Attribute(s.Findings, func(f fault.Finding) *fault.Finding { return &f })
}

// Attribute leaves out the findings that another one explains. If two say that one mount is broken, the first counts.
func Attribute[T any](all []T, finding func(T) *fault.Finding) (first []T) {
	broken := map[place][]*fault.Finding{}
	for _, one := range all {
		f := finding(one)
		at := place{f.Mount.Namespace, f.Mount.Point}
		if f.AsksWhy() && slices.ContainsFunc(all, func(other T) bool { return finding(other).Explains(f) }) ||
			slices.ContainsFunc(broken[at], func(before *fault.Finding) bool { return before.Code != f.Code && before.Mount.Same(f.Mount) }) {
			continue
		}
		if breaksMount(f) && f.Mount != (fault.Mount{}) {
			broken[at] = append(broken[at], f)
		}
		first = append(first, one)
	}
	return first
}

// place is where a mount is.
type place struct {
	namespace uint64
	point     string
}

// breaksMount reports whether the finding says of its mount itself that it is broken.
func breaksMount(f *fault.Finding) bool {
	return fault.Known().Entry(f.Code).Breaks >= fault.BreaksMount
}

// Without is all of it but the places of volumes that a finding says are broken: each state of a volume is said once. A place in a container
// is said with its volume, or with the same mount.
func (u Unknown) Without(findings []fault.Finding) Unknown {
	type mountOf struct{ pod, volume, container, point string }
	part, whole, same := map[mountOf]bool{}, map[mountOf]bool{}, map[mountOf]bool{}
	for _, f := range findings {
		if !breaksMount(&f) {
			continue
		}
		volume := mountOf{pod: f.Pod.UID, volume: f.Volume}
		part[volume], whole[volume] = true, whole[volume] || f.Container == ""
		same[mountOf{f.Pod.UID, f.Volume, f.Container, f.Mount.Point}] = true
		same[mountOf{pod: f.Pod.UID, container: f.Container, point: f.Mount.Point}] = true // a path of the node has no volume of the kubelet
	}
	u.Places = slices.DeleteFunc(slices.Clone(u.Places), func(p Place) bool {
		volume := mountOf{pod: p.Pod.UID, volume: p.Volume}
		switch {
		case p.Namespace != "", p.Volume == "" && p.Container == "":
			return false
		case p.Volume == "":
			return same[mountOf{pod: p.Pod.UID, container: p.Container, point: p.Point}]
		case p.Container == "":
			return part[volume]
		}
		return whole[volume] || same[mountOf{p.Pod.UID, p.Volume, p.Container, p.Point}]
	})
	return u
}
