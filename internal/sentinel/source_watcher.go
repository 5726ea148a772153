// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"fmt"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
)

// What is heard of a source. A directory that is removed says nothing itself: its parent does.
const (
	ofFile      = sys.WatchAttrib | sys.WatchMoveSelf | sys.WatchDeleteSelf
	ofDirectory = sys.WatchMoveSelf | sys.WatchDeleteSelf
	ofParent    = sys.WatchDelete | sys.WatchMovedFrom
)

// Whoever may write to a directory can have it cause a hundred thousand events a second. A watch with more than maxEvents
// in a second is removed, and so is one with more than its share of maxAllEvents, where there are more of these in all.
// What it watched is looked at once a beat instead, for the time of rest.
const (
	maxEvents    = 1000
	maxAllEvents = 10 * maxEvents
	rest         = 30 * time.Second
)

// alarm tells of changes at the sources of binds.
type alarm struct {
	watcher *sys.Watcher
	// rings has the events; it is closed when no more can come, and err says why.
	rings chan []sys.Event
	stop  chan struct{}
	err   error

	calls   map[int][]call // by watch
	watches map[*bind][]int

	counts map[int]int // events since, by watch
	all    int         // events since, of all watches
	since  time.Time
}

// call is whom an event is for. name is that of the entry in a watched directory; empty for what is watched itself.
type call struct {
	bind *bind
	name string
}

// newAlarm starts to listen. The caller closes it.
func newAlarm() (*alarm, error) {
	w, err := sys.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("make inotify instance: %w", err)
	}
	a := &alarm{
		watcher: w, rings: make(chan []sys.Event), stop: make(chan struct{}),
		calls: map[int][]call{}, watches: map[*bind][]int{},
	}
	go a.listen()
	return a, nil
}

// listen hands events on until the watcher is closed.
func (a *alarm) listen() {
	defer close(a.rings)
	for {
		events, err := a.watcher.Read(nil)
		if err != nil {
			a.err = fmt.Errorf("read inotify events: %w", err)
			return
		}
		select {
		case a.rings <- events:
		case <-a.stop:
			return
		}
	}
}

func (a *alarm) close() {
	close(a.stop)
	_ = a.watcher.Close()
	for range a.rings { // until the listener has ended
	}
}

// set has events of what fd has open, or of its entry of that name, concern b.
func (a *alarm) set(b *bind, fd *sys.FD, mask uint32, name string) error {
	watch, err := a.watcher.Add(fd, mask)
	if err != nil {
		return err
	}
	a.calls[watch] = append(a.calls[watch], call{b, name})
	a.watches[b] = append(a.watches[b], watch)
	return nil
}

// concerned lists the binds that an event is for.
func (a *alarm) concerned(e sys.Event) []*bind {
	var found []*bind
	for _, c := range a.calls[e.Watch] {
		if e.Mask&sys.WatchIgnored != 0 {
			c.bind.watched = false
		}
		if c.name == e.Name || e.Mask&sys.WatchIgnored != 0 {
			found = append(found, c.bind)
		}
	}
	if e.Mask&sys.WatchIgnored != 0 {
		delete(a.calls, e.Watch)
	}
	return found
}

// count takes in events and returns the binds whose watches are flooded.
func (a *alarm) count(events []sys.Event, now time.Time) (flooded []*bind) {
	if now.Sub(a.since) >= time.Second {
		a.counts, a.all, a.since = map[int]int{}, 0, now
	}
	for _, e := range events {
		if len(a.calls[e.Watch]) > 0 {
			a.counts[e.Watch]++
			a.all++
		}
	}
	most := maxEvents
	if a.all > maxAllEvents {
		most = min(most, maxAllEvents/max(1, len(a.calls)))
	}
	for watch, n := range a.counts {
		if n > most {
			for _, c := range a.calls[watch] {
				flooded = append(flooded, c.bind)
			}
		}
	}
	return flooded
}

// drop forgets a bind.
func (a *alarm) drop(b *bind) {
	for _, watch := range a.watches[b] {
		left := slices.DeleteFunc(a.calls[watch], func(c call) bool { return c.bind == b })
		a.calls[watch] = left
		if len(left) == 0 {
			delete(a.calls, watch)
			_ = a.watcher.Remove(watch) // it is gone, or the instance is
		}
	}
	delete(a.watches, b)
	b.watched = false
}
