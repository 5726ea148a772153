// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"strings"

	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// foundMount is a target's mount, as the kernel knows it without asking its file
// system.
type foundMount struct {
	namespace mountns.Namespace // the zero value is this process' own
	state     mount.State
}

// targetMounts holds the mounts of the targets, and the kernel's own facts about them.
type targetMounts struct {
	targets []Target
	found   []foundMount
	control *fuse.Control
}

func (m *targetMounts) close() {
	if m.control != nil {
		_ = m.control.Close() // nothing was written
	}
}

// locateAll finds the mounts of all targets in the mount tables, one namespace after another. known gives the table of a namespace if
// it was read a short time before; nil: all are read.
func (m *targetMounts) locateAll(known func(mountns.Namespace) *mountinfo.Table, then func(i int, st mount.State, err error)) {
	spaces := map[mountns.Namespace][]int{}
	for i, f := range m.found {
		spaces[f.namespace] = append(spaces[f.namespace], i)
	}
	for namespace, targets := range spaces {
		wanted := make([]mount.ID, len(targets))
		for n, i := range targets {
			wanted[n] = m.targets[i].ID
			if found := m.found[i].state.ID; found != (mount.ID{}) {
				wanted[n] = found
			}
			wanted[n].Point = m.targets[i].Point
		}
		var table *mountinfo.Table
		if known != nil {
			table = known(m.targets[targets[0]].Namespace)
		}
		look := func() error {
			mount.LocateAll(table, wanted, func(n int, st mount.State, err error) { then(targets[n], st, err) })
			return nil
		}
		if namespace == (mountns.Namespace{}) {
			_ = look() // never fails
			continue
		}
		if err := namespace.Do(look); err != nil {
			for _, i := range targets {
				then(i, mount.State{}, err)
			}
		}
	}
}

// fuseConnection holds the kernel's facts about the server of a FUSE file system; the zero value if there are none.
func (m *targetMounts) fuseConnection(st mount.State) fuse.Connection {
	base, _, _ := strings.Cut(st.FSType, ".")
	if m.control == nil || st.Major != 0 || base != "fuse" && base != "virtiofs" {
		return fuse.Connection{}
	}
	c, _ := m.control.Connection(st.Minor) // without it there are fewer hints
	return c
}

// waitingRequests is how many requests to a target's server wait for an answer; 0 also
// where that is not known.
func (m *targetMounts) waitingRequests(target int) int {
	return m.fuseConnection(m.found[target].state).Waiting
}

// pathToMount is the namespace and the path of a mount.
type pathToMount struct {
	namespaceInode uint64 // inode of the namespace, or the process in it if that may not be read
	point          string
}

func (m *targetMounts) wayToMount(target int) pathToMount {
	ns := m.found[target].namespace
	return pathToMount{cmp.Or(ns.Inode, uint64(ns.PID)), m.targets[target].Point}
}
