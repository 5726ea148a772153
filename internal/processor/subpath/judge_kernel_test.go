// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"slices"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
)

// raceRound is a round, with what there was before.
type raceRound struct {
	raceContest
	bout
	before   []mountKey
	stale    mount.State
	staleKey mountKey
	on       uint64 // the mount that the stale one is on
	root     string // of a mount of what the subPath names
}

func (r *raceScene) newRound(t *testing.T, c raceContest, stale mount.State) raceRound {
	t.Helper()
	before, err := mountKeys()
	must(t, err)
	key := keyOf(stale.ID, stale.ReadOnly)
	on, err := key.load()
	must(t, err)
	healthy, err := mount.Inspect(r.places.sparePoint())
	must(t, err)
	return raceRound{raceContest: c, before: before, stale: stale, staleKey: key, on: on.Parent, root: healthy.Root}
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
	after, err := mountKeys()
	must(t, err)
	lost := without(slices.Concat(m.before, m.deed.Added), after)
	stays := !slices.Contains(lost, m.staleKey)
	if !unique(0) && m.outcome == unmounted && m.mayBeBack() {
		stays = false // a new bind of the same root may have the number of the stale one
	}
	if foreign := without(lost, []mountKey{m.staleKey}); len(foreign) > 0 {
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
func (m raceRound) checkNewBind(t *testing.T, r *raceScene, made []mountKey) {
	t.Helper()
	if len(made) == 0 && !m.mayBeBare() {
		t.Errorf("outcome %q, and there is no new bind (%d of the rival's)", m.outcome, m.deed.Bound)
	}
	if len(made) == 2 && m.mayBeDoubled(t, made) {
		made = made[:1]
	}
	if len(made) > 1 || len(made) == 1 && !m.mayHaveNewBind() {
		t.Fatalf("outcome %q, and there are new mounts: %v", m.outcome, made)
	}
	if len(made) == 1 {
		r.tally.put++
		if m.checkNewMount(t, r.places, made[0]) {
			t.Errorf("outcome %q, and the new bind covers the rival's", m.outcome)
		}
	}
	if len(m.deed.Added) == 1 {
		if top, err := mount.Inspect(r.places.Point); err != nil || keyOf(top.ID, top.ReadOnly) != m.deed.Added[0] {
			t.Errorf("at the point: %+v, %v, want the rival's mount %+v (outcome %q)", top, err, m.deed.Added[0], m.outcome)
		}
	}
}

// mayBeBack reports whether the rival may have brought back, as what the subPath names, what had been moved away.
func (m raceRound) mayBeBack() bool {
	return m.act == "replace the source" && !m.isMarkedDeleted() && m.deed.Began < m.ended
}

// isMarkedDeleted reports whether the stale mount is marked deleted.
func (m raceRound) isMarkedDeleted() bool { return m.index == 0 }

// mayBeDoubled reports whether the new bind may lie twice in its place, and puts the lower one first. Before Linux 6.5 it is
// there before the stale one goes. A second attempt does not find it if the point's directory was replaced in between.
func (m raceRound) mayBeDoubled(t *testing.T, made []mountKey) bool {
	t.Helper()
	first, err := made[0].load()
	must(t, err)
	if first.Parent == made[1].ID {
		slices.Reverse(made)
	}
	lower, err := made[0].load()
	must(t, err)
	upper, err := made[1].load()
	must(t, err)
	return sys.HasMoveBeneath.Probe() != nil && strings.HasSuffix(m.act, " the parent") &&
		upper == mountPlace{Parent: made[0].ID, Point: lower.Point, Root: lower.Root}
}

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
func (m raceRound) checkNewMount(t *testing.T, p rivalPlaces, made mountKey) (covers bool) {
	t.Helper()
	at, err := made.load()
	must(t, err)
	covers = !m.isMarkedDeleted() && slices.ContainsFunc(m.deed.Added, func(k mountKey) bool { return k.ID == at.Parent })
	if at.Point != p.Point || at.Parent != m.on && !covers {
		t.Errorf("the new mount is at %q on %d, want %q on %d (outcome %q)", at.Point, at.Parent, p.Point, m.on, m.outcome)
	}
	if at.Root != m.root && !(m.mayBeBack() && at.Root == m.stale.Root) {
		t.Errorf("the new mount is of %q, want %q (outcome %q)", at.Root, m.root, m.outcome)
	}
	return covers
}
