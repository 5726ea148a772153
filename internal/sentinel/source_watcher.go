// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/share"
)

// The events of a source to watch. The removal of a directory is reported by its parent only.
const (
	fileEvents      = sys.WatchAttrib | sys.WatchMoveSelf | sys.WatchDeleteSelf
	directoryEvents = sys.WatchMoveSelf | sys.WatchDeleteSelf
	parentEvents    = sys.WatchDelete | sys.WatchMovedFrom
)

// Bounds of events in one second. A process that may write to a directory can cause a hundred thousand. A watch with
// more than maxWatchEvents is removed. If all watches together have more than maxTotalEvents, a watch with more than
// its share is removed as well. The bind is polled at each tick instead, for floodPause.
const (
	maxWatchEvents = 1000
	maxTotalEvents = 10 * maxWatchEvents
	floodPause     = 30 * time.Second
)

// sourceWatcher reports changes at the sources of binds.
type sourceWatcher struct {
	inotify *sys.Watcher
	// events passes on the events. It is closed when no more can come, and then err is the reason.
	events chan []sys.Event
	stop   chan struct{}
	err    error

	subscriptions map[int][]subscription // by watch
	watches       map[*bind][]int
	// room has a place for each bind that is watched, and owners whose place it is.
	room   share.Room
	owners map[*bind]share.Owner

	eventCounts  map[int]int // events since countedSince, by watch
	totalEvents  int         // events since countedSince, of all watches
	countedSince time.Time

	// outOfWatches is set when the kernel refuses more watches. The observer is notified of it once.
	outOfWatches bool
}

// subscription is a bind that an event concerns. name is the entry in a watched directory, and empty for the watched
// file or directory itself.
type subscription struct {
	bind *bind
	name string
}

// A bind has at most two watches. All binds together have half of the watches of root, which it needs for the kubelet, too.
const (
	watchesPerBind = 2
	partOfWatches  = 2
	// defaultWatches is what kernels before 5.11 have.
	defaultWatches = 8192
)

// watchedBinds is how many binds are watched at most. The others are polled.
func watchedBinds(watches int) int { return watches / partOfWatches / watchesPerBind }

// maxUserWatches is how many watches the kernel gives root.
func maxUserWatches() int {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches")
	if n, numberErr := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && numberErr == nil {
		return n
	}
	return defaultWatches
}

// readEvents passes on events until the watcher is closed.
func (s *sourceWatcher) readEvents() {
	defer close(s.events)
	for {
		events, err := s.inotify.Read()
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
	for range s.events { // until readEvents has ended
	}
}

// errNoPlace is the error for a bind whose pod or namespace has its share of the watches.
var errNoPlace = errors.New("the share of watches is used up")

// errNoWatch is the error for a source on a file system that does not support inotify.
var errNoWatch = errors.New("file system reports no changes")

// watch watches the source of a bind, and the name of its subPath. It runs inside the kubelet's mount namespace.
func (s *sourceWatcher) watch(b *bind, node *kubelet.Node, pod *corev1.Pod) error {
	s.unsubscribe(b)
	state, err := mount.Inspect(b.point)
	if err != nil {
		return err
	}
	if mountns.MayHang(state.FSType) {
		return errNoWatch
	}
	if !s.takePlace(b, pod) {
		return errNoPlace
	}
	fd, err := mountns.Lookup(0, b.point)
	if err != nil {
		return err
	}
	defer fd.Close()
	if !state.Dir {
		return s.subscribe(b, fd, fileEvents, "")
	}
	if err := s.subscribe(b, fd, directoryEvents, ""); err != nil {
		return err
	}
	parent, name, err := subpath.Parent(node, pod, b.point)
	if err != nil {
		return err
	}
	defer parent.Close()
	return s.subscribe(b, parent, parentEvents, name)
}

// takePlace takes a place for a bind, on the account of its pod.
func (s *sourceWatcher) takePlace(b *bind, pod *corev1.Pod) bool {
	var owner share.Owner
	if pod != nil {
		owner = share.Owner{Namespace: pod.Namespace, Pod: string(pod.UID)}
	}
	if !s.room.Take(owner) {
		return false
	}
	s.owners[b] = owner
	return true
}

// subscribe watches the file that fd has open for the bind. If name is not empty, only events of that entry of the
// directory concern it.
func (s *sourceWatcher) subscribe(b *bind, fd *sys.FD, mask uint32, name string) error {
	watch, err := s.inotify.Add(fd, mask)
	if err != nil {
		return err
	}
	s.subscriptions[watch] = append(s.subscriptions[watch], subscription{b, name})
	s.watches[b] = append(s.watches[b], watch)
	return nil
}

// countEvents counts events and returns the binds whose watches have too many.
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

// unsubscribe removes all watches of a bind.
func (s *sourceWatcher) unsubscribe(b *bind) {
	for _, watch := range s.watches[b] {
		remaining := slices.DeleteFunc(s.subscriptions[watch], func(c subscription) bool { return c.bind == b })
		s.subscriptions[watch] = remaining
		if len(remaining) == 0 {
			delete(s.subscriptions, watch)
			_ = s.inotify.Remove(watch) // fails only if the watch or the whole instance is gone
		}
	}
	delete(s.watches, b)
	if owner, ok := s.owners[b]; ok {
		s.room.Free(owner)
		delete(s.owners, b)
	}
	b.watched = false
}
