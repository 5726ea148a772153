// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// Volumes judges the volumes of the node, and mends them: a *volume.Inspector.
type Volumes interface {
	Inspect(ctx context.Context, s volume.Selection) (*volume.Survey, error)
	Plan(ctx context.Context, v *volume.Health, o volume.PlanOptions) (actions []fault.Action, refusals []string, err error)
	ApplyAll(ctx context.Context, actions []fault.Action, each func(i int, done fault.Applied, err error) (goOn bool))
}

// Connections tells what the kernel knows about FUSE connections, without asking their servers: a *fuse.Control.
type Connections interface {
	Connection(minor uint32) (fuse.Connection, error)
}

// Intervals of the patrol, and their bounds.
const (
	// round is how often all volumes are asked whether they answer, whatever is known of them, and how often for each of them
	// where there are many. bare is how often it is looked for volumes where there were none: that one comes is seen by its
	// mount, but for a hostPath on what the node has mounted for itself.
	round, roundOfOne, bare = 30 * time.Second, 300 * time.Millisecond, thorough
	// restOfOne is how long there is between two looks on the average at least, for each volume that is looked at: to ask one
	// takes about a twentieth of that. How long a look takes says nothing: it may have waited. Some looks may follow one another
	// before that, by half a beat: whoever dies second, or comes back, is not to wait for what has been seen before.
	restOfOne, inARow = 10 * time.Millisecond, 6
	// relapse is how soon all is looked at again while there are faults, and twice as long after each time that nothing has
	// changed: no event tells that a container has ended that had a dead mount.
	relapse = 2 * time.Second
	// maxFelt is how many connections are felt in one beat: the others have their turn in the next.
	maxFelt = 256
	// patient is for how many turns requests may wait at a connection before its mounts are asked.
	patient = 3
	// repeats is how often everything is looked at again at once because something was repaired.
	repeats = 3
	// portion is how long repairs may follow one another before the connections are felt again, at least: they get as much
	// time as the look before them took. If a driver's daemon has taken a thousand volumes with it, their repairs take minutes.
	portion = beat
)

// patrol is the watch over the volumes of one node that can die under their pods. Whether one has is found out where a
// Diagnosis finds it out. The patrol only knows when to look: when mounts of CSI volumes or of file systems that may hang
// come or go, when the kernel says that a FUSE connection is dead or that requests wait at it, and every round. One
// goroutine has it.
type patrol struct {
	*Sentinel
	mounts *mounts
	seed   maphash.Seed
	shape  uint64 // of the mounts that may hang, and of those of CSI volumes

	pulses map[uint32]*pulse // by connection
	order  []uint32
	turn   int // whose it is in order

	pace            // of looks
	whole time.Time // when all is looked at, whatever is known
	again time.Duration
	due   bool

	present map[spot]fault.Finding
	todo    repairQueue   // what is left to do of what was planned when all was looked at
	took    time.Duration // of the last look
	retries map[site]*setback
	// blind says why no volume could be asked the last time.
	blind error
	// trouble is what could not be seen the last time, so that it is told of once.
	trouble string
}

// pulse is what the kernel said last about a connection.
type pulse struct {
	dead bool
	// waits counts the turns for which requests have been waiting.
	waits int
}

// spot is a broken mount at its place.
type spot struct {
	namespace, id uint64
	number        int
	point         string
	code          fault.Code
}

func spotOf(m *fault.Mount, code fault.Code) spot {
	return spot{namespace: m.Namespace, id: m.ID, number: m.MountInfoID, point: m.Point, code: code}
}

// site is a place that is repaired, whichever mount is there: with a driver that comes and goes it is another every time.
type site struct {
	namespace uint64
	point     string
}

func siteOf(m *fault.Mount) site { return site{m.Namespace, m.Point} }

// setback is how often a repair has failed, and bounds how often one is made.
type setback struct {
	repairLimiter
	delay       time.Duration
	until, used time.Time
}

func newPatrol(s *Sentinel) *patrol {
	return &patrol{
		Sentinel: s, mounts: newMounts(), seed: maphash.MakeSeed(),
		pulses: map[uint32]*pulse{}, present: map[spot]fault.Finding{}, retries: map[site]*setback{},
	}
}

// keep goes on until ctx is done.
func (p *patrol) keep(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	defer p.mounts.close()
	for ctx.Err() == nil {
		err := p.tick(ctx)
		p.admit(ctx, cmp.Or(err, p.blind))
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// admit tells what cannot be seen, once for as long as it stays the same.
func (p *patrol) admit(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != p.trouble {
		p.Observer.Trouble(err)
	}
	p.trouble = text
	p.see(err == nil)
}

// tick does what is to be done in one beat.
func (p *patrol) tick(ctx context.Context) error {
	node, err := p.Kubelet.Node(ctx)
	if err != nil {
		return err
	}
	below := node.Root
	if !mountinfo.Within(below, node.PodsDir()) { // a link leads out of it
		below = "/"
	}
	mounts, changed, err := p.mounts.list(node, below)
	if err != nil {
		return err
	}
	if changed {
		p.note(mounts)
	}
	p.feel()
	now := time.Now()
	if due := p.due || !now.Before(p.whole); due && !now.Before(p.next) {
		return p.look(ctx)
	}
	if p.mend(ctx) && p.todo.empty() {
		return p.look(ctx)
	}
	return nil
}

// onCSI is in the path of every CSI volume.
var onCSI = "/" + strings.ReplaceAll(kubelet.CSI, "/", "~") + "/"

// note takes in which mounts there are that may hang, or can be found to be another volume's.
func (p *patrol) note(mounts []mountns.Mount) {
	var h maphash.Hash
	h.SetSeed(p.seed)
	seen := map[uint32]*pulse{}
	for i := range mounts {
		m := &mounts[i]
		if !mountns.MayHang(m.FSType) && !strings.Contains(m.Point, onCSI) {
			continue
		}
		maphash.WriteComparable(&h, [2]uint64{m.Unique, uint64(m.ID)})
		_, _ = h.WriteString(m.Point)
		if strings.HasPrefix(m.FSType, "fuse") && m.Major == 0 {
			seen[m.Minor] = p.pulses[m.Minor]
		}
	}
	for minor, known := range seen {
		if known == nil {
			seen[minor] = &pulse{}
		}
	}
	p.pulses, p.order = seen, slices.Sorted(maps.Keys(seen))
	if shape := h.Sum64(); shape != p.shape {
		p.shape, p.due = shape, true
	}
}

// feel asks the kernel about connections, in turn.
func (p *patrol) feel() {
	if p.Connections == nil {
		return
	}
	for range min(maxFelt, len(p.order)) {
		p.turn = (p.turn + 1) % len(p.order)
		minor := p.order[p.turn]
		c, err := p.Connections.Connection(minor)
		if err == nil && p.pulses[minor].beats(c) {
			p.due = true
		}
	}
}

// beats takes in what the kernel says, and tells whether the connection is to be looked at for it.
func (u *pulse) beats(c fuse.Connection) (look bool) {
	look = c.Dead != u.dead
	u.dead = c.Dead
	if c.Waiting == 0 || c.Dead {
		look = look || u.waits >= patient
		u.waits = 0
		return look
	}
	u.waits++
	return look || u.waits == patient
}

// look asks all volumes, tells what is new, and begins to mend what may be mended.
func (p *patrol) look(ctx context.Context) error {
	for range repeats {
		p.moves()
		p.due = false
		p.todo.plan(nil)
		survey, err := p.Volumes.Inspect(ctx, volume.Selection{})
		now, asked := time.Now(), 0
		if err == nil {
			asked, p.took = survey.Coverage.Asked, survey.Coverage.Took
		}
		earned := time.Duration(asked) * restOfOne
		p.after(now, earned, inARow*earned) // so that some may follow one another
		p.whole = now.Add(max(round, time.Duration(asked)*roundOfOne))
		if err != nil {
			return err
		}
		if len(survey.Volumes) == 0 {
			p.whole = now.Add(bare)
		}
		p.blind = blind(survey.Volumes)
		if p.again = min(2*p.again, time.Hour); p.compare(survey.Volumes) {
			p.again = relapse
		}
		if len(p.present) > 0 && now.Add(p.again).Before(p.whole) {
			p.whole = now.Add(p.again)
		}
		if p.blind == nil {
			p.publish(fromVolumes, faultsOf(p.present))
		}
		if p.Mode == Automatic {
			p.plan(ctx, survey.Broken())
		}
		if !p.mend(ctx) || !p.todo.empty() {
			break
		}
	}
	return nil
}

// plan notes what can be repaired without losing anything. The volumes of a pod that ends are the kubelet's to unmount.
func (p *patrol) plan(ctx context.Context, broken []*volume.Health) {
	var all []fault.Action
	for _, v := range broken {
		if pod := p.Pods.PodByUID(v.Pod.UID); pod == nil || ends(pod) {
			continue
		}
		actions, _, err := p.Volumes.Plan(ctx, v, volume.PlanOptions{})
		if err != nil {
			p.Observer.Trouble(err)
			continue
		}
		all = append(all, actions...)
	}
	p.todo.plan(all)
}

func ends(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// mend goes on with what was planned, for a while, and reports whether anything was repaired. A repair that fails ends the
// plan of its pod: where one file system does not answer, the next repairs would fail, or wait, as this one did, so that
// all is looked at first.
func (p *patrol) mend(ctx context.Context) (repaired bool) {
	end := time.Now().Add(max(portion, p.took))
	for !p.todo.empty() && ctx.Err() == nil && time.Now().Before(end) {
		batch, untried := p.todo.next(), 0
		var due []fault.Action
		for _, a := range batch {
			if p.allowed(a) {
				due = append(due, a)
			}
		}
		if untried = len(due); untried == 0 {
			continue
		}
		p.moves()
		p.Volumes.ApplyAll(ctx, due, func(i int, done fault.Applied, err error) bool {
			p.moves()
			untried--
			made, err := p.settle(due[i], done, err)
			repaired = repaired || made
			if err != nil {
				p.todo.fail()
				untried = 0
			}
			return err == nil && ctx.Err() == nil && time.Now().Before(end)
		})
		p.todo.back(due[len(due)-untried:])
	}
	return repaired
}

// allowed reports whether a repair may be tried now, and counts that it is.
func (p *patrol) allowed(a fault.Action) bool {
	if a.Kind != fault.Replace || !a.Lossless {
		return false
	}
	if _, known := p.present[spotOf(a.Mount, a.Fault)]; !known {
		return false
	}
	at := siteOf(a.Mount)
	b := p.retries[at]
	if b == nil {
		b = &setback{}
		p.retries[at] = b
	}
	now := time.Now()
	if now.Before(b.until) || !b.allow(now) {
		p.due = true
		return false
	}
	b.used = now
	return true
}

// settle notes how a repair went. The error is that of one that was tried and has failed.
func (p *patrol) settle(a fault.Action, done fault.Applied, err error) (repaired bool, failed error) {
	refused := errors.Is(err, volume.ErrRefused) // somebody else was faster, or it is not what it was
	if !refused && !done.Already {
		p.Observer.Repaired(p.present[spotOf(a.Mount, a.Fault)], err)
	}
	b := p.retries[siteOf(a.Mount)]
	if err == nil {
		b.delay = 0
		return true, nil
	}
	b.delay = min(max(firstRetryDelay, 2*b.delay), maxRetryDelay)
	b.until = time.Now().Add(b.delay)
	p.due = true
	if refused {
		err = nil
	}
	return false, err
}

// see says what is seen now.
func (p *patrol) see(watching bool) {
	now := Sight{Watching: watching, Connections: len(p.order), Present: map[fault.Code]int{}}
	for s := range p.present {
		now.Present[s.code]++
	}
	p.Sentinel.seeVolumes(now)
}
