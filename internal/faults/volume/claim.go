// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"path"
	"slices"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// claim finds out whether the namespace is one in which mounts may be changed.
func (l *look) claim(s *otherNamespace) {
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

// recordedFirst orders mounts: first those that the runtime has made, which are judged if there are more than maxCopies.
func (l *look) recordedFirst(mounts []mountns.Mount) {
	recorded := func(m mountns.Mount) int {
		s := l.namespaces[placeOf(m.Namespace)]
		if s.owner != nil && slices.ContainsFunc(s.owner.Mounts, func(r cri.Mount) bool { return path.Clean("/"+r.ContainerPath) == m.Point }) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(mounts, func(a, b mountns.Mount) int { return recorded(a) - recorded(b) })
}
