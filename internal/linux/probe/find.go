// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"slices"
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

// findMounts finds the mounts of all targets. It looks up no path: the way to one may lead over any file system, and
// this process must not wait.
func (s *pass) findMounts() {
	s.placeTargets()
	s.locateAll(func(i int, state mount.State, err error) {
		a, want := &s.answers[i], s.targets[i].ID
		if err == nil && want != (mount.ID{}) && (!sameMount(want, state.ID) || want.MountInfoID != 0 && want.MountInfoID != state.MountInfoID) {
			err = &mount.ChangedError{Want: want, Found: state.ID}
		}
		if err != nil {
			a.Errno = errnoOf(err)
			s.setState(i, stateOfFindError(err), 0, err.Error())
			return
		}
		s.found[i].state = state
		s.describeMount(i, state)
	})
}

func (s *pass) describeMount(i int, st mount.State) {
	a := &s.answers[i]
	a.ID, a.FSType, a.Deleted, a.ReadOnly = st.ID, st.FSType, st.Deleted, a.ReadOnly || st.ReadOnly
}

// recheckMounts makes sure that it was the mount that was meant which answered, or
// did not, and adds what the kernel knows of it by now.
func (s *pass) recheckMounts() {
	s.locateAll(func(i int, state mount.State, err error) {
		if s.answers[i].ID == (mount.ID{}) {
			return // never was there
		}
		if err == nil && !sameMount(s.found[i].state.ID, state.ID) {
			err = &mount.ChangedError{Want: s.found[i].state.ID, Found: state.ID}
		}
		if err != nil && stateOfFindError(err) != Gone {
			s.answers[i].Evidence = append(s.answers[i].Evidence, "after asking: "+err.Error())
			return // it was the one that was meant when it was opened
		}
		if err != nil {
			s.answers[i] = Answer{Target: i, State: Gone, Errno: errnoOf(err), Evidence: []string{"after asking: " + err.Error()}}
			return
		}
		s.describeMount(i, state)
		s.refineError(i)
		if state.Deleted {
			s.answers[i].Evidence = append(s.answers[i].Evidence, "the kernel's mark: deleted")
		}
		if a := s.answers[i]; a.Stat.Fresh && a.Stat.Nlink == 0 {
			s.answers[i].Evidence = append(a.Evidence, "its link count is 0")
		}
	})
}

// sameMount reports whether both are one mount, of which the kernel may have said
// meanwhile that its root is unlinked.
func sameMount(a, b mount.ID) bool {
	a.Root, _ = mountinfo.Deleted(a.Root)
	b.Root, _ = mountinfo.Deleted(b.Root)
	return a.Same(b)
}

// placeTargets finds out which targets are in this process' own namespace, and
// where the others' can be entered.
func (s *pass) placeTargets() {
	own, err := mountns.Self()
	var homeless []mountns.Namespace
	for i, t := range s.targets {
		if t.Namespace == (mountns.Namespace{}) || err == nil && t.Namespace.Same(own) {
			continue
		}
		s.found[i].namespace = t.Namespace
		if t.Namespace.PID == 0 {
			homeless = append(homeless, t.Namespace)
		}
	}
	if len(homeless) == 0 {
		return
	}
	holders, _, _ := mountns.Holders(homeless) // else they are looked for one by one
	for i := range s.found {
		ns := &s.found[i].namespace
		if held := holders[ns.Inode]; ns.PID == 0 && len(held) > 0 && held[0].Kind == mountns.Process {
			ns.PID = held[0].PID
		}
	}
}

// locateAll finds the mounts of all targets in the mount tables, one namespace after another.
func (s *pass) locateAll(then func(i int, st mount.State, err error)) {
	spaces := map[mountns.Namespace][]int{}
	for i, f := range s.found {
		spaces[f.namespace] = append(spaces[f.namespace], i)
	}
	for namespace, targets := range spaces {
		wanted := make([]mount.ID, len(targets))
		for n, i := range targets {
			wanted[n] = s.targets[i].ID
			if found := s.found[i].state.ID; found != (mount.ID{}) {
				wanted[n] = found
			}
			wanted[n].Point = s.targets[i].Point
		}
		look := func() error {
			mount.LocateAll(wanted, func(n int, st mount.State, err error) { then(targets[n], st, err) })
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

// groupByFileSystem puts the questions that can be asked together by file system.
func (s *pass) groupByFileSystem() {
	groups := map[uint64]*targetGroup{}
	for i, f := range s.found {
		if !s.awaitsAnswer(i) || s.wayBlockedBefore(i) {
			continue
		}
		device := uint64(f.state.Major)<<32 | uint64(f.state.Minor)
		group := groups[device]
		if group == nil {
			group = s.newGroup(device, i)
			groups[device] = group
			s.groups = append(s.groups, group)
		}
		t := s.targets[i]
		q := question{
			Target: i, Own: f.namespace == (mountns.Namespace{}), Namespace: f.namespace,
			Local: !mountns.MayHang(f.state.FSType), Below: []byte(t.Below), Bind: t.Bind, Owner: t.Owner,
		}
		q.setMount(f.state.ID)
		group.questions = append(group.questions, q)
	}
	s.groups = slices.DeleteFunc(s.groups, s.hasWaitingThread)
	s.takeTurns()
}

// newGroup is a group without questions yet, of the target's file system. It is proven if that has answered when it was
// asked last, and no request waits for the server; one whose server is gone answers at once.
func (s *pass) newGroup(device uint64, target int) *targetGroup {
	c := s.fuseConnection(s.found[target].state)
	return &targetGroup{device: device, owner: s.targets[target].Owner, answeredBefore: s.answeringFileSystems[device] && (c.Dead || c.Waiting == 0)}
}

// takeTurns has the owners take turns, so that one with many file systems that do not answer takes no time from the
// others. File systems that did not answer in the last pass come last.
func (s *pass) takeTurns() {
	turns := map[string]int{}
	for _, g := range s.groups {
		if g.owner != "" {
			turns[g.owner]++
			g.ownerTurn = turns[g.owner]
		}
	}
	slices.SortStableFunc(s.groups, func(a, b *targetGroup) int {
		if slow := s.slowFileSystems[a.device]; slow != s.slowFileSystems[b.device] {
			if slow {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.ownerTurn, b.ownerTurn)
	})
}

// fuseConnection is what the kernel knows of a file system's server, where that is
// one of FUSE; the zero value if nothing is known.
func (s *pass) fuseConnection(st mount.State) fuse.Connection {
	base, _, _ := strings.Cut(st.FSType, ".")
	if s.control == nil || st.Major != 0 || base != "fuse" && base != "virtiofs" {
		return fuse.Connection{}
	}
	c, _ := s.control.Connection(st.Minor) // without it there are fewer hints
	return c
}

// waitingRequests is how many requests to a target's server wait for an answer; 0 also
// where that is not known.
func (s *pass) waitingRequests(target int) int {
	return s.fuseConnection(s.found[target].state).Waiting
}

// hasWaitingThread reports whether a thread of an earlier pass still waits for the
// group's file system, and has that be the answer.
func (s *pass) hasWaitingThread(g *targetGroup) bool {
	w, is := s.waitingThreads[g.device]
	if !is {
		return false
	}
	for _, q := range g.questions {
		s.setState(q.Target, Hung, 0, append([]string{w.String()}, describeQueue(s.waitingRequests(q.Target))...)...)
	}
	return true
}

// wayBlockedBefore reports whether a thread of an earlier pass still waits on the way to the target's mount, and has
// that be the answer: it says nothing about the mount itself.
func (s *pass) wayBlockedBefore(target int) bool {
	w, is := s.blockedWays[s.wayToMount(target)]
	if is {
		s.setState(target, NotProbed, 0, w.String())
	}
	return is
}

// pathToMount is where a mount is looked up.
type pathToMount struct {
	namespaceInode uint64 // inode of the namespace, or the process in it if that may not be read
	point          string
}

func (s *pass) wayToMount(target int) pathToMount {
	ns := s.found[target].namespace
	return pathToMount{cmp.Or(ns.Inode, uint64(ns.PID)), s.targets[target].Point}
}
