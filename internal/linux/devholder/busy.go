// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/linux/sys"
)

// testBusy asks the kernel for the device. The search goes on if it does not answer.
func (s *holderSearch) testBusy() error {
	r := s.report
	r.Busy, r.Untested = s.sys.Busy(r.Device)
	if isGone(r.Untested) {
		return r.Untested
	}
	return nil
}

// hiddenHolders lists possible holders that cannot be found, or could not be inspected.
func (s *holderSearch) hiddenHolders() []string {
	l := s.report.Coverage
	list := []string{
		"a descriptor on its way through a unix socket, which nothing in /proc shows",
		"a file or a mount that the kernel holds by itself: registered with io_uring, exported by the NFS server, used for process accounting",
	}
	overlay := "an overlay made of directories on it, which only the paths of its mount show"
	switch {
	case slices.ContainsFunc(s.report.Holders, func(h Holder) bool { return h.Inferred }):
		overlay = "the overlays named: their layers are no longer where they were, which proves nothing"
	case l.Unplaced > 0:
		overlay += fmt.Sprintf(" (of %d overlays, %d have a layer that could not be looked for)", l.Overlays, l.Unplaced)
	}
	list = append(list, overlay)
	for _, loop := range s.unansweredLoops {
		list = append(list, "loop device "+loop+", which did not answer")
	}
	if l.Denied > 0 {
		list = append(list, fmt.Sprintf("one of %d processes that may not be looked into", l.Denied))
	}
	if l.Unanswered > 0 {
		list = append(list, fmt.Sprintf("one of %d processes that did not answer in time", l.Unanswered))
	}
	if l.Unread > 0 {
		list = append(list, fmt.Sprintf("a descriptor of one of %d processes that have very many", l.Unread))
	}
	if l.Mounts.Partial > 0 {
		list = append(list, fmt.Sprintf("a mount in one of %d mount namespaces that could be read only in part", l.Mounts.Partial))
	}
	for _, what := range l.Mounts.Skipped {
		list = append(list, "what was not looked at: "+what)
	}
	if l.Mounts.Backend != "kernel" {
		list = append(list, "a mount outside the root of every process of its namespace",
			"a mount namespace that only an open mount table or a descriptor in a socket keeps")
	}
	switch visible, err := sys.ProcVisibility(); {
	case err != nil || visible == sys.SeesOwn:
		list = append(list, "a process of others, which /proc does not show")
	case visible == sys.SeesNamespace:
		list = append(list, "a process outside of this PID namespace, which /proc does not show")
	}
	if len(s.btrfs) > 0 {
		list = append(list, "an open file or a loop device on a btrfs that is mounted nowhere: its files do not show the device")
	}
	return list
}
