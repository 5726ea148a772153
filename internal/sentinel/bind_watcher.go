// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"maps"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Bounds of the work.
const (
	// maxCalls is how often events can have a bind looked at between two beats: whoever may change the attributes of a
	// file may do so in a loop.
	maxCalls = 8
	// maxBatch is how many binds are looked at in one visit to the kubelet's namespace.
	maxBatch = 64
	// maxNews is how many faults and repairs, and maxWait for how long any of them, can wait to be told of while there is
	// more to be done.
	maxNews = 1024
	maxWait = 100 * time.Millisecond
	// maxPolled is how many binds that no watch tells of are looked at in one beat.
	maxPolled = 256
)

// vigil is the watch over one kubelet. One goroutine has it.
type vigil struct {
	*Sentinel
	node   *kubelet.Node
	mounts *mounts
	alarm  *alarm

	binds map[string]*bind // by point
	// restless are those that something may become of without an event, and others that were marked since the last beat.
	restless map[*bind]bool
	due      []*bind // to be looked at, in the order in which that was found out
	news     []news  // to be told
	space    uint64  // the kubelet's mount namespace, by inode
	// full is when everything is looked at.
	full time.Time
	// stirred is set where what is seen may have changed since it was said last.
	stirred bool
	// table is the mount table as it was at the time read.
	table *mountinfo.Table
	read  time.Time
	// short is set once watches have run out, so that it is told of once.
	short bool
}

func newVigil(s *Sentinel, node *kubelet.Node) (*vigil, error) {
	a, err := newAlarm()
	if err != nil {
		return nil, err
	}
	return &vigil{Sentinel: s, node: node, mounts: newMounts(), alarm: a, binds: map[string]*bind{}, restless: map[*bind]bool{}}, nil
}

func (v *vigil) close() {
	v.alarm.close()
	v.mounts.close()
}

// keep keeps watch until ctx is done or something fails that concerns the whole node.
func (v *vigil) keep(ctx context.Context) error {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	if err := v.tick(ctx); err != nil {
		return err
	}
	for {
		if err := v.work(ctx); err != nil {
			return err
		}
		if v.canWait() {
			select {
			case events, ok := <-v.alarm.rings:
				if err := v.hear(events, ok); err != nil {
					return err
				}
				continue
			default: // nothing waits for help: there is time to talk
			}
		}
		if err := v.tell(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case events, ok := <-v.alarm.rings:
			if err := v.hear(events, ok); err != nil {
				return err
			}
		case <-tick.C:
			if err := v.tick(ctx); err != nil {
				return err
			}
		}
	}
}

// canWait tells whether there are news that can wait until events have been taken in that are there already.
func (v *vigil) canWait() bool {
	return len(v.news) > 0 && len(v.news) < maxNews && time.Since(v.news[0].seen) < maxWait
}

// tick brings the list of binds up to date, and marks those that no event tells about.
func (v *vigil) tick(ctx context.Context) error {
	if err := v.same(ctx, v.node); err != nil {
		return err
	}
	now := time.Now()
	if now.After(v.full) {
		v.full = now.Add(thorough)
		v.mounts.anew()
		for _, b := range v.binds {
			v.mark(b)
		}
		maps.DeleteFunc(v.allowances, func(point string, _ *allowance) bool { return v.binds[point] == nil })
	}
	if err := v.list(); err != nil {
		return err
	}
	v.poll(now)
	v.stirred = true // pods change what is a fault
	return nil
}

// poll marks the binds that have to be asked about.
func (v *vigil) poll(now time.Time) {
	polled := 0
	for b := range v.restless {
		if !b.due && b.calls == 0 && b.calm() {
			delete(v.restless, b)
			continue
		}
		missed := b.calls > maxCalls
		b.calls = 0
		switch {
		case missed:
			v.mark(b)
		case !b.looked:
			if v.Pods.PodByUID(b.sub.PodUID) != nil { // it is known by now
				v.mark(b)
			}
		case b.code != "" && v.suffers(b) && (!v.knows(b) || b.fault == nil || v.Mode == Automatic && !now.Before(b.retry)):
			v.mark(b)
		case b.uncertain() && polled < maxPolled: // a map has no order: all get their turn
			polled++
			v.mark(b)
		}
	}
}

// list finds the binds that have come and gone.
func (v *vigil) list() error {
	mounts, changed, err := v.mounts.list(v.node, v.node.PodsDir())
	if err != nil || !changed {
		return err
	}
	shapes := map[string]shape{}
	for i := range mounts {
		s := shapes[mounts[i].Point]
		s.add(&mounts[i])
		shapes[mounts[i].Point] = s
	}
	for point := range v.binds {
		if _, ok := shapes[point]; !ok {
			v.forget(point)
		}
	}
	for point, s := range shapes {
		b := v.binds[point]
		switch {
		case b != nil && b.shape == s:
			continue
		case b == nil || !b.shape.same(s):
			sub, ok := v.node.ParseSubPath(point)
			if !ok {
				continue
			}
			v.forget(point)
			b = &bind{sub: sub, point: point}
			v.binds[point] = b
		}
		b.shape = s
		v.mark(b)
	}
	return nil
}

func (v *vigil) forget(point string) {
	if b := v.binds[point]; b != nil {
		v.alarm.drop(b)
		delete(v.binds, point)
		delete(v.restless, b)
		delete(v.told, point)
	}
}

func (v *vigil) mark(b *bind) {
	if !b.due {
		b.due, v.restless[b] = true, true
		v.due = append(v.due, b)
	}
}

// hear marks the binds that events tell of. ok is false where no more can come.
func (v *vigil) hear(events []sys.Event, ok bool) error {
	if !ok {
		return v.alarm.err
	}
	now := time.Now()
	for _, b := range v.alarm.count(events, now) {
		b.rests = now.Add(rest)
		v.alarm.drop(b)
		v.mark(b)
	}
	for _, e := range events {
		if e.Mask&sys.WatchOverflow != 0 {
			v.full = time.Time{} // at the next tick and not more often: it may be somebody's doing
			continue
		}
		for _, b := range v.alarm.concerned(e) {
			if b.calls++; b.calls <= maxCalls {
				v.mark(b)
			}
		}
	}
	return nil
}

// work looks at the binds that are marked, in their order.
func (v *vigil) work(ctx context.Context) error {
	for len(v.due) > 0 {
		batch := v.due[:min(len(v.due), maxBatch)]
		v.due = v.due[len(batch):]
		for _, b := range batch {
			b.due = false
		}
		batch = slices.DeleteFunc(batch, func(b *bind) bool { return v.binds[b.point] != b })
		if err := v.examine(ctx, batch); err != nil {
			return err
		}
		v.stirred = true
	}
	v.due = nil
	return nil
}

// report says what is seen now.
func (v *vigil) report() {
	now := Sight{Watching: true, Binds: len(v.binds), Present: map[fault.Code]int{}}
	var faults []*Fault
	for b := range v.restless { // of all others nothing is to be said
		if v.suffers(b) {
			now.Present[b.code]++
			if b.fault != nil {
				faults = append(faults, b.fault.withState(v.Pods.PodByUID(b.sub.PodUID)))
			}
		}
		if !b.watched {
			now.Unwatched++
		}
	}
	v.see(now)
	v.publish(fromBinds, faults)
	v.stirred = false
}
