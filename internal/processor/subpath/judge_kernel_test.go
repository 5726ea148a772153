// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"slices"
	"testing"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
)

// raceRound is a round, with what there was before.
type raceRound struct {
	raceContest
	bout
	before []uint64
	stale  mount.State
	on     uint64 // the mount that the stale one is on
	root   string // of a mount of what the subPath names
}

func (r *raceScene) newRound(t *testing.T, c raceContest, stale mount.State) raceRound {
	t.Helper()
	before, err := mountIDs(0)
	must(t, err)
	var m sys.MountStat
	must(t, m.Load(sys.MountRef{Mount: stale.UniqueID}, sys.StatmountBasic))
	healthy, err := mount.Inspect(r.places.sparePoint())
	must(t, err)
	return raceRound{raceContest: c, before: before, stale: stale, on: m.Parent(), root: healthy.Root}
}

// checkRound holds that nothing is gone but the stale mount, nothing is there but what the rival bound and at most one
// new bind in the place of the stale one, and that the stale mount is where the recoverer says it is.
func (m raceRound) checkRound(t *testing.T, r *raceScene) {
	t.Helper()
	r.tally.rounds++
	r.tally.outcomes[m.outcome]++
	if m.deed.Began < m.ended && m.began < m.deed.Ended {
		r.tally.met++
	}
	if len(m.deed.Added) != m.deed.Bound {
		t.Errorf("the rival made %d mounts, of which %d were there right afterwards", m.deed.Bound, len(m.deed.Added))
	}
	after, err := mountIDs(0)
	must(t, err)
	lost := without(slices.Concat(m.before, m.deed.Added), after)
	stays := !slices.Contains(lost, m.stale.UniqueID)
	if foreign := without(lost, []uint64{m.stale.UniqueID}); len(foreign) > 0 {
		t.Errorf("%d healthy mounts are gone: %v (outcome %q)", len(foreign), foreign, m.outcome)
	}
	if stays && m.outcome == unmounted || !stays && m.outcome != unmounted && !rivalActs[m.act].removes {
		t.Errorf("outcome %q, but the stale mount is there: %v", m.outcome, stays)
	}
	// A source that was in place again before the first look makes the bind healthy.
	if m.act == "replace the source" && m.deed.Ended < m.began && m.outcome == unmounted {
		t.Errorf("outcome %q although the source was replaced before", m.outcome)
	}
	m.checkNewBind(t, r, without(after, slices.Concat(m.before, m.deed.Added)))
}

// checkNewBind holds that a new bind is there where there is to be one, and only there, and that it covers nothing.
func (m raceRound) checkNewBind(t *testing.T, r *raceScene, ids []uint64) {
	t.Helper()
	if len(ids) == 0 && !m.mayBeBare() {
		t.Errorf("outcome %q, and there is no new bind (%d of the rival's)", m.outcome, m.deed.Bound)
	}
	if len(ids) > 1 || len(ids) == 1 && !m.mayHaveNewBind() {
		t.Fatalf("outcome %q, and there are new mounts: %v", m.outcome, ids)
	}
	if len(ids) == 1 {
		r.tally.put++
		if m.checkNewMount(t, r.places, ids[0]) {
			t.Errorf("outcome %q, and the new bind covers the rival's", m.outcome)
		}
	}
	if len(m.deed.Added) == 1 {
		if top, err := mount.Inspect(r.places.Point); err != nil || top.UniqueID != m.deed.Added[0] {
			t.Errorf("at the point: %+v, %v, want the rival's mount %d (outcome %q)", top, err, m.deed.Added[0], m.outcome)
		}
	}
}

// isMarkedDeleted reports whether the stale mount is marked deleted.
func (m raceRound) isMarkedDeleted() bool { return m.index == 0 }

// mayHaveNewBind reports whether there may be a new bind. One that was put beneath shows as well where the rival was
// faster to remove the stale mount.
func (m raceRound) mayHaveNewBind() bool {
	return m.act != "uncover" && (m.outcome == unmounted || m.isMarkedDeleted() && rivalActs[m.act].removes && m.outcome == gone)
}

// mayBeBare reports whether there may be none.
func (m raceRound) mayBeBare() bool {
	switch {
	case m.outcome != unmounted, m.act == "uncover":
		return true
	case rivalActs[m.act].removes: // the new one as well
		return m.deed.Ended > m.began
	case m.act == "replace the source": // to which nothing may belong for a moment, or at all
		return m.deed.Began < m.ended
	}
	return m.act == "stack" && !m.isMarkedDeleted() && m.deed.Bound == 1 && m.deed.Began < m.ended // in the place of the stale one
}

// checkNewMount checks that a new mount is the one that is to be there, and reports whether it lies on one that the
// rival made.
func (m raceRound) checkNewMount(t *testing.T, p rivalPlaces, id uint64) (covers bool) {
	t.Helper()
	var s sys.MountStat
	must(t, s.Load(sys.MountRef{Mount: id}, sys.StatmountBasic|sys.StatmountPoint|sys.StatmountRoot))
	covers = !m.isMarkedDeleted() && slices.Contains(m.deed.Added, s.Parent())
	if string(s.Point()) != p.Point || s.Parent() != m.on && !covers {
		t.Errorf("the new mount is at %q on %d, want %q on %d (outcome %q)", s.Point(), s.Parent(), p.Point, m.on, m.outcome)
	}
	// The rival may have brought back, as what the subPath names, what had been moved away.
	back := m.act == "replace the source" && !m.isMarkedDeleted() && m.deed.Began < m.ended
	if root := string(s.Root()); root != m.root && !(back && root == m.stale.Root) {
		t.Errorf("the new mount is of %q, want %q (outcome %q)", root, m.root, m.outcome)
	}
	return covers
}
