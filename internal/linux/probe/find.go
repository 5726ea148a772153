// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"slices"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// findMounts finds the mounts of all targets. It looks up no path: the way to one may lead over any file system, and
// this process must not wait.
func (s *pass) findMounts() {
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
	if len(homeless) > 0 {
		holders, _, _ := mountns.Holders(homeless) // else each is searched for by itself
		for i := range s.found {
			ns := &s.found[i].namespace
			if held := holders[ns.Inode]; ns.PID == 0 && len(held) > 0 && held[0].Kind == mountns.Process {
				ns.PID = held[0].PID
			}
		}
	}
	s.locateAll(s.prober.Known, func(i int, state mount.State, err error) {
		a, want := &s.answers[i], s.targets[i].ID
		if err == nil && want != (mount.ID{}) && (!sameMount(want, state.ID) || want.MountInfoID != 0 && want.MountInfoID != state.MountInfoID) {
			err = &mount.ChangedError{Want: want, Found: state.ID}
		}
		if err != nil {
			a.Errno = errnoOf(err)
			s.answers.setState(i, stateOfFindError(err), 0, err.Error())
			return
		}
		s.found[i].state = state
		s.answers.describeMount(i, state)
	})
}

// recheckMounts makes sure that the answer, or the lack of one, is about the target's mount, and adds the kernel's
// newest facts about it.
func (s *pass) recheckMounts() {
	s.locateAll(nil, func(i int, state mount.State, err error) {
		if s.answers[i].ID == (mount.ID{}) {
			return // never was there
		}
		if err == nil && !sameMount(s.found[i].state.ID, state.ID) {
			err = &mount.ChangedError{Want: s.found[i].state.ID, Found: state.ID}
		}
		if err != nil && stateOfFindError(err) != Gone {
			s.answers[i].Evidence = append(s.answers[i].Evidence, "after asking: "+err.Error())
			return // it was the right mount when it was opened
		}
		if err != nil {
			s.answers[i] = Answer{Target: i, State: Gone, Errno: errnoOf(err), Evidence: []string{"after asking: " + err.Error()}}
			return
		}
		s.answers.describeMount(i, state)
		s.answers.refineError(i)
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

// groupByFileSystem groups the questions by file system.
func (s *pass) groupByFileSystem() {
	groups := map[uint64]*targetGroup{}
	for i, f := range s.found {
		if !s.answers.awaits(i) {
			continue
		}
		// A thread of an earlier pass may still wait on the way to the mount. This shows nothing about the mount itself.
		if w, blocked := s.prober.blockedWays[s.wayToMount(i)]; blocked {
			s.answers.setState(i, NotProbed, 0, w.String())
			continue
		}
		device := uint64(f.state.Major)<<32 | uint64(f.state.Minor)
		group := groups[device]
		if group == nil {
			// A server of FUSE for which requests wait may not answer, though it has. A server that is gone answers at once.
			c := s.fuseConnection(f.state)
			group = &targetGroup{
				device: device, owner: s.targets[i].Owner, answeredBefore: s.prober.answeringFileSystems[device] && (c.Dead || c.Waiting == 0),
				requestsWait: !c.Dead && c.Waiting > 0,
			}
			groups[device] = group
			s.groups = append(s.groups, group)
		}
		t := s.targets[i]
		q := question{
			Target: i, Own: f.namespace == (mountns.Namespace{}), Namespace: f.namespace,
			Point: []byte(f.state.ID.Point), Unique: f.state.ID.UniqueID, Reused: f.state.ID.MountInfoID,
			Local: !mountns.MayHang(f.state.FSType), Below: []byte(t.Below), Bind: t.Bind, Owner: t.Owner,
		}
		group.questions = append(group.questions, q)
	}
	// If a thread of an earlier pass still waits for the file system, this is the answer. So is that of an earlier pass if it still holds.
	s.groups = slices.DeleteFunc(s.groups, func(g *targetGroup) bool {
		s.noteSilence(g)
		w, waits := s.prober.waitingThreads[g.device]
		if a, silent := s.knownSilence(g, waits); silent {
			for _, q := range g.questions {
				if to := &s.answers[q.Target]; sameMount(to.ID, a.ID) {
					to.Stat = a.Stat
					s.answers.setState(q.Target, a.State, a.Took, a.Evidence...)
				} else {
					s.answers.setState(q.Target, a.State, a.Took, notAskedText(a.ID.Point))
				}
			}
			return true
		}
		if !waits {
			return false
		}
		for _, q := range g.questions {
			s.answers.setState(q.Target, s.stateOfWaiter(w), 0, append([]string{w.String()}, describeQueue(s.waitingRequests(q.Target))...)...)
		}
		return true
	})
}

// takeTurns has the owners take turns, so that one with many file systems that do not answer takes no time from the
// others.
func (s *pass) takeTurns() {
	turns := map[string]int{}
	for _, g := range s.groups {
		if g.owner != "" {
			turns[g.owner]++
			g.ownerTurn = turns[g.owner]
		}
	}
	slices.SortStableFunc(s.groups, func(a, b *targetGroup) int {
		return cmp.Compare(a.ownerTurn, b.ownerTurn)
	})
}
