// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// claim finds out whether the namespace is one in which mounts may be changed.
func (l *look) claim(s *space) {
	if s.ns.Inode == 0 {
		return
	}
	ns, err := cri.Claim(l.host, s.ns, s.owner)
	switch {
	case err == nil:
		s.ns = ns
	case errors.Is(err, cri.ErrWorkload):
		s.foreign = true
	case errors.Is(err, cri.ErrUserNamespace):
		s.ns, s.refusal = ns, err.Error()
	case s.owner != nil:
		s.owner, s.why = nil, "whose that mount namespace is cannot be told: "+err.Error()
	}
}

// maxCopies bounds how many mounts are looked at for one container, or in one namespace of nobody that is known.
const maxCopies = 64

// bound leaves out what is more than that, those last that the runtime has made. Of what workloads have in namespaces of
// their own nobody is asked.
func (l *look) bound(mounts []mountns.Mount) []mountns.Mount {
	recorded := func(m mountns.Mount) int {
		s := l.spaces[placeOf(m.Namespace)]
		if s.owner != nil && slices.ContainsFunc(s.owner.Mounts, func(r cri.Mount) bool { return path.Clean("/"+r.ContainerPath) == m.Point }) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(mounts, func(a, b mountns.Mount) int { return recorded(a) - recorded(b) })
	count := map[string]int{}
	mounts = slices.DeleteFunc(mounts, func(m mountns.Mount) bool {
		s := l.spaces[placeOf(m.Namespace)]
		if s.foreign {
			return false
		}
		count[s.name()]++
		return count[s.name()] > maxCopies
	})
	for _, name := range slices.Sorted(maps.Keys(count)) {
		if more := count[name] - maxCopies; more > 0 {
			l.incomplete("%s has %d mounts that may be of a volume: %d of them were not looked at", name, count[name], more)
		}
	}
	return mounts
}

// name is whose the namespace is, for people.
func (s *space) name() string {
	if s.owner == nil {
		return "mount namespace " + s.ns.String()
	}
	return fmt.Sprintf("container %q (%s) of pod %q", s.owner.Container, s.owner.ContainerID, s.owner.PodUID)
}
