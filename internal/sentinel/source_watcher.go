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
	fileEvents      = sys.WatchAttrib | sys.WatchMoveSelf | sys.WatchDeleteSelf
	directoryEvents = sys.WatchMoveSelf | sys.WatchDeleteSelf
	parentEvents    = sys.WatchDelete | sys.WatchMovedFrom
)

// Whoever may write to a directory can have it cause a hundred thousand events a second. A watch with more than maxEvents
// in a second is removed, and so is one with more than its share of maxAllEvents, where there are more of these in all.
// What it watched is looked at once a beat instead, for the time of rest.
const (
	maxWatchEvents = 1000
	maxTotalEvents = 10 * maxWatchEvents
	floodPause     = 30 * time.Second
)

// sourceWatcher tells of changes at the sources of binds.
type sourceWatcher struct {
	inotify *sys.Watcher
	// events has the events; it is closed when no more can come, and err says why.
	events chan []sys.Event
	stop   chan struct{}
	err    error

	subscriptions map[int][]subscription // by watch
	watches       map[*bind][]int

	eventCounts  map[int]int // events since, by watch
	totalEvents  int         // events since, of all watches
	countedSince time.Time
}

// subscription is whom an event is for. name is that of the entry in a watched directory; empty for what is watched itself.
type subscription struct {
	bind *bind
	name string
}

// newSourceWatcher starts to listen. The caller closes it.
func newSourceWatcher() (*sourceWatcher, error) {
	inotify, err := sys.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("make inotify instance: %w", err)
	}
	s := &sourceWatcher{
		inotify: inotify, events: make(chan []sys.Event), stop: make(chan struct{}),
		subscriptions: map[int][]subscription{}, watches: map[*bind][]int{},
	}
	go s.readEvents()
	return s, nil
}

// readEvents hands events on until the watcher is closed.
func (s *sourceWatcher) readEvents() {
	defer close(s.events)
	for {
		events, err := s.inotify.Read(nil)
		if err != nil {
			s.err = fmt.Errorf("read inotify events: %w", err)
			return
		}
		select {
		case s.events <- events:
		case <-s.stop:
			return
		}
	}
}

func (s *sourceWatcher) close() {
	close(s.stop)
	_ = s.inotify.Close()
	for range s.events { // until the listener has ended
	}
}

// subscribe has events of what fd has open, or of its entry of that name, concern b.
func (s *sourceWatcher) subscribe(b *bind, fd *sys.FD, mask uint32, name string) error {
	watch, err := s.inotify.Add(fd, mask)
	if err != nil {
		return err
	}
	s.subscriptions[watch] = append(s.subscriptions[watch], subscription{b, name})
	s.watches[b] = append(s.watches[b], watch)
	return nil
}

// affected lists the binds that an event is for.
func (s *sourceWatcher) affected(e sys.Event) []*bind {
	var found []*bind
	for _, c := range s.subscriptions[e.Watch] {
		if e.Mask&sys.WatchIgnored != 0 {
			c.bind.watched = false
		}
		if c.name == e.Name || e.Mask&sys.WatchIgnored != 0 {
			found = append(found, c.bind)
		}
	}
	if e.Mask&sys.WatchIgnored != 0 {
		delete(s.subscriptions, e.Watch)
	}
	return found
}

// countEvents takes in events and returns the binds whose watches are flooded.
func (s *sourceWatcher) countEvents(events []sys.Event, now time.Time) (flooded []*bind) {
	if now.Sub(s.countedSince) >= time.Second {
		s.eventCounts, s.totalEvents, s.countedSince = map[int]int{}, 0, now
	}
	for _, e := range events {
		if len(s.subscriptions[e.Watch]) > 0 {
			s.eventCounts[e.Watch]++
			s.totalEvents++
		}
	}
	limit := maxWatchEvents
	if s.totalEvents > maxTotalEvents {
		limit = min(limit, maxTotalEvents/max(1, len(s.subscriptions)))
	}
	for watch, n := range s.eventCounts {
		if n > limit {
			for _, c := range s.subscriptions[watch] {
				flooded = append(flooded, c.bind)
			}
		}
	}
	return flooded
}

// unsubscribe forgets a bind.
func (s *sourceWatcher) unsubscribe(b *bind) {
	for _, watch := range s.watches[b] {
		remaining := slices.DeleteFunc(s.subscriptions[watch], func(c subscription) bool { return c.bind == b })
		s.subscriptions[watch] = remaining
		if len(remaining) == 0 {
			delete(s.subscriptions, watch)
			_ = s.inotify.Remove(watch) // it is gone, or the instance is
		}
	}
	delete(s.watches, b)
	b.watched = false
}
